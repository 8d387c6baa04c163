"""A journal: what each render of a search gave, in a folder, so that a search that was interrupted renders nothing twice."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from diffcache.config import CacheConfig
from diffcache.profiling.recording.processes import broadcast
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.schedule_file import as_json
from diffcache.schedulers.search.checkpoint import load_checkpoint, save_checkpoint

KIND = "render"
"""The kind of a journal's files."""

NOT_WHAT_IT_DOES = ("producer", "measured")
"""Fields of a schedule that change no render."""


class Entry(NamedTuple):
    """What one render gave: tensors, and whatever JSON can hold."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


class Spent(Exception):
    """The time that a search was given is over."""


class Progress(Protocol):
    """Is told of every render."""

    def rendered(self, seconds: float) -> None:
        """One more render was made, and took so long."""

    def found(self) -> None:
        """One more render was not made, because the journal had it."""


class Journal:
    """Entries by what was rendered. Each is written as a whole or not at all.

    Args:
        folder: of the files; None: nothing is written, and nothing found.
        minutes: how long the search may take, from now on; None: as long as it takes.

    Attributes:
        progress: is told of every render; None: nobody is.
    """

    def __init__(self, folder: Path | None = None, *, minutes: float | None = None) -> None:
        self.folder = folder
        self.progress: Progress | None = None
        self._end = None if minutes is None else time.monotonic() + 60 * minutes
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def entry(self, key: str, make: Callable[[], Entry]) -> Entry:
        """What was rendered under this key; if there is no entry yet, it is made and written."""
        if self.has(key):
            self._tell(None)
            return Entry(*load_checkpoint(self.path(key), KIND))
        begun = time.monotonic()
        made = make()
        made = Entry(made.tensors, json.loads(json.dumps(made.facts)))  # as it will be read
        if self.folder is not None:
            save_checkpoint(self.path(key), KIND, made.tensors, made.facts)
        self._tell(time.monotonic() - begun)
        return made

    def has(self, key: str) -> bool:
        """Whether there is an entry."""
        return self.folder is not None and self.path(key).exists()

    def path(self, key: str) -> Path:
        """Of an entry's file."""
        assert self.folder is not None
        return self.folder / f"{key}.safetensors"

    def check_time(self) -> None:
        """All processes call this together.

        Raises:
            Spent: the time is over.
        """
        if self._end is not None and broadcast(time.monotonic() >= self._end):
            raise Spent

    def stop_clock(self) -> None:
        """From now on there is no limit: what is left to do is bounded."""
        self._end = None

    @contextmanager
    def untimed(self) -> Iterator[None]:
        """Inside there is no limit."""
        end, self._end = self._end, None
        try:
            yield
        finally:
            self._end = end

    def _tell(self, seconds: float | None) -> None:
        if self.progress is not None:
            if seconds is None:
                self.progress.found()
            else:
                self.progress.rendered(seconds)


_open: ContextVar[Journal | None] = ContextVar("journal", default=None)


@contextmanager
def journaling(journal: Journal) -> Iterator[Journal]:
    """A context in which renders are noted in a journal."""
    token = _open.set(journal)
    try:
        yield journal
    finally:
        _open.reset(token)


def journal() -> Journal:
    """The journal that is open; where none is, one that writes nothing."""
    return _open.get() or Journal()


def key_of(kind: str, **about: Any) -> str:
    """The key of an entry: its kind, and a hash of what was rendered. Configs count by what they do."""
    text = json.dumps({name: _written(value) for name, value in about.items()}, sort_keys=True)
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _written(value: Any) -> Any:
    if isinstance(value, CacheConfig):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return [type(value).__name__, {name: _written(its) for name, its in fields.items()}]
    if isinstance(value, Schedule):
        decisions = {name: its for name, its in as_json(value).items() if name not in NOT_WHAT_IT_DOES}
        return [decisions, {name: _written(tensor) for name, tensor in value.corrections.items()}]
    if isinstance(value, Tensor):
        return hashlib.sha256(value.detach().cpu().double().numpy().tobytes()).hexdigest()
    return value if isinstance(value, (str, int, float, bool, list, tuple, type(None))) else repr(value)
