"""Trying out a noise scheduler: on a copy, and without drawing from the global random generator, which other threads use too."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode
from typing_extensions import Self


@dataclass
class Use:
    """Whether anything was to be drawn; known when the context is left."""

    was_used: bool = False


class _Drawing(Exception):
    """Ends what is tried out, so that nothing is drawn."""


class _Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Ends the first operation of this thread that would draw from the global generator."""

    def __init__(self, use: Use) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._use = use

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions run compiled."""
        return True

    def __enter__(self) -> Self:
        """Not as torch's: that notes for all threads at once which modes are entered, and notes it wrongly for good where two overlap."""
        _push_mode(self)
        return self

    def __exit__(self, *error: object) -> None:
        _pop_mode()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and given.get("generator") is None:
            self._use.was_used = True
            raise _Drawing
        return func(*args, **given)


@contextmanager
def nothing_drawn() -> Iterator[Use]:
    """What is run inside ends where it would draw from the global generator. Operations take two to three times as long."""
    use = Use()
    try:
        with _Watching(use):
            yield use
    except _Drawing:
        pass


def begun_anew(copied: Any) -> Any:
    """A copy as it is before a run over all of its timesteps: of the original's, a loop may begin later, as in image-to-image."""
    for name in ("_begin_index", "_step_index"):
        if hasattr(copied, name):
            setattr(copied, name, None)
    return copied


def copied_to_cpu(noise_scheduler: Any) -> Any:
    """A copy whose tensors are on the CPU, so that no step waits for a device."""
    copied = copy.deepcopy(noise_scheduler)
    for name, value in vars(copied).items():
        if isinstance(value, Tensor):
            setattr(copied, name, value.cpu())
    return copied
