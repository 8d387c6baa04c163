"""Observers: told of every computed feature, and of what would have been used instead. Calibrations are made of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

from diffcache.schedulers.steps import Step


class Observer:
    """Looks on at a run.

    Attributes:
        shadow: every place is computed; where the method would have reused, prediction and truth are compared.
    """

    shadow = False

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        """A place has been computed: what was stored of it, and what it returned, one tensor for each stream."""

    def measured(self, denoiser: str, step: Step, signal: Sequence[float]) -> None:
        """The method's signal at a tick, one number for each stream."""

    def predicted(
        self, denoiser: str, step: Step, guess: Sequence[Tensor], truth: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """A place would have been reused: its outputs as predicted, and as computed, one for each stream.

        Returns what the run goes on with: the truth (open loop), the prediction (closed loop), or one repaired.
        """
        return truth


_observer: ContextVar[Observer | None] = ContextVar("diffcache_observer", default=None)


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Runs that begin inside, in this context, are watched by `observer`."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def observer_now() -> Observer:
    """The one that watches; one that does nothing where there is none."""
    return _observer.get() or Observer()
