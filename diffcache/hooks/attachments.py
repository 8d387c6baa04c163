"""Which objects are accelerated, and which of them are paused: pipelines, denoisers and language models alike.

A module that `torch.compile` wraps is known here by the module inside: callers pass that one.
"""

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from diffcache.hooks.class_swap import Override, swap_in, swap_out
from diffcache.schedulers.errors import TargetError


@dataclass(eq=False)
class Attachment(ABC):
    """What `accelerate` attached to one target.

    Attributes:
        config: the method.
        swapped: objects whose class was swapped for this target.
    """

    config: Any
    swapped: "WeakSet[Any]" = field(default_factory=WeakSet)

    @property
    def in_use(self) -> str | None:
        """Why nobody else may replace or remove it now; None where they may."""
        return None

    @abstractmethod
    def report(self) -> Any:
        """The report of the target's last call; an empty one before the first."""


_attachments: "WeakKeyDictionary[Any, Attachment]" = WeakKeyDictionary()
"""By target."""

_kept: Counter[int] = Counter()
"""By identity of an object with a swapped class: how many running calls need it."""

_changes = 0
"""How often something was attached or removed."""

_lock = threading.RLock()
"""Held while these are looked at or changed: threads attach, call and restore at once."""

PAUSED: ContextVar[tuple[int, ...]] = ContextVar("diffcache_paused", default=())
"""Ids of the paused targets, in this thread, once for each pause."""


def own_attachment(target: object) -> Attachment | None:
    """That of the target itself."""
    return _attachments.get(target) if _can_be_key(target) else None


def attachment_of(target: object) -> Attachment | None:
    """That of the target itself, or of the one pipeline through which it is accelerated."""
    users = users_of(target)
    return own_attachment(target) or (users[0] if len(users) == 1 else None)


def users_of(thing: object) -> list[Attachment]:
    """The attachments for which an object's class was swapped."""
    if not _can_be_key(thing):
        return []
    with _lock:
        return [attachment for attachment in _attachments.values() if thing in attachment.swapped]


def refuse_in_use(target: object) -> None:
    """Refuses to change what is attached to a target that is in use.

    Raises:
        TargetError: it is; the sentence says what ends that.
    """
    attachment = own_attachment(target)
    if attachment is not None and attachment.in_use is not None:
        raise TargetError(f"this {type(target).__name__} {attachment.in_use}.")


def register(target: object, attachment: Attachment) -> None:
    """Makes this the target's attachment. What only the one before it needed gets its own class back."""
    global _changes
    with _lock:
        before = own_attachment(target)
        _attachments[target] = attachment
        _changes += 1
    if before is not None:
        release(before.swapped)


def forget(target: object) -> None:
    """Removes the target's attachment, if it has one. What only that one needed gets its own class back."""
    global _changes
    with _lock:
        attachment = _attachments.pop(target, None) if _can_be_key(target) else None
        _changes += 1
    if attachment is not None:
        release(attachment.swapped)


def release(things: Iterable[object]) -> None:
    """Gives these objects their own class back, unless an attachment or a running call needs the swapped one."""
    for thing in list(things):
        with _lock:
            if not _kept[id(thing)] and not users_of(thing):
                swap_out(thing)


@contextmanager
def kept(things: Iterable[object]) -> Iterator[None]:
    """Inside, in all threads, these objects keep the classes that they have, though what is attached may change."""
    global _kept
    needed, before = list(things), _changes
    with _lock:
        _kept.update(map(id, needed))
    try:
        yield
    finally:
        with _lock:
            _kept -= Counter(map(id, needed))  # leaves out what nobody needs
        if _changes != before:
            release(needed)


@contextmanager
def swapped(things: Iterable[object], override: Override) -> Iterator[None]:
    """Inside, all of these have generated subclasses; those that had one before keep it."""
    needed = list(things)
    try:
        with kept(needed):
            for thing in needed:
                swap_in(thing, override)
            yield
    finally:
        release(needed)


@contextmanager
def paused(target: object) -> Iterator[None]:
    """Inside, calls of `target` compute everything and leave its report as it is; in this thread only.

    Raises:
        TargetError: it is not accelerated.
    """
    if attachment_of(target) is None:
        raise TargetError(f"this {type(target).__name__} is not accelerated: there is nothing to pause.")
    PAUSED.set((*PAUSED.get(), id(target)))
    try:
        yield
    finally:
        left = [*PAUSED.get()]
        if id(target) in left:  # a generator may be left in another context than it was entered in
            left.remove(id(target))
        PAUSED.set(tuple(left))


def is_paused(*targets: object) -> bool:
    """Whether any of these is paused in this thread."""
    return any(id(target) in PAUSED.get() for target in targets)


def _can_be_key(target: object) -> bool:
    """Whether a target can be remembered without being kept alive."""
    try:
        hash(target)
    except TypeError:
        return False
    return type(target).__weakrefoffset__ != 0
