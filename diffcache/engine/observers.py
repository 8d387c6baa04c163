"""Observers: told of every computed feature, and of what would have been used instead. Calibrations are made of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

from diffcache.schedulers.steps import Step


class Observer:
    """Looks on at a run.

    Attributes:
        shadow: every site is computed; where the method would have reused, prediction and truth are compared.
        closed: the run goes on with the prediction (closed loop), not with the truth; for shadows only.
        sees_steps: it is told of the noise scheduler's steps, too.
    """

    shadow = False
    closed = False
    sees_steps = False

    def called(self, denoiser: str, step: Step, latents: Sequence[Tensor]) -> None:
        """A whole denoiser that has been computed before is called with these latents."""

    def computing(self, denoiser: str, step: Step) -> None:
        """A site is about to be computed. Not called for a site inside a denoiser at a branch's first call."""

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor], stream: int
    ) -> None:
        """A site has been computed, in a shadow also where it would have been reused.

        Args:
            features: what is stored of it, or would be, one tensor for each stream.
            outputs: what it returned, likewise.
            stream: index of the one that continues the site's first latent. A block of Flux returns the text first.
        """

    def guided(self, scale: float, *, conditional_first: bool) -> None:
        """A step has shown a scale of guidance that nothing told, and which of two passes is the conditional one."""

    def stepping(self, tick: int, seen: Tensor, velocity: Tensor) -> None:
        """The noise scheduler is about to step, in a run of one denoiser all of whose passes are computed, or all reused.

        Args:
            tick: of the step.
            seen: what the denoiser sees of the sample, fp32.
            velocity: what the noise scheduler gets, guided and corrected, fp32.
        """

    def stepped(self, sample: Tensor) -> None:
        """It has stepped, and this is the sample after it."""

    def measured(self, denoiser: str, step: Step, signal: Sequence[float]) -> None:
        """What the cache scheduler has read from the device at a tick (`CacheScheduler.measure`)."""

    def predicted(
        self,
        denoiser: str,
        step: Step,
        guess: Sequence[Tensor],
        truth: Sequence[Tensor],
        features: Sequence[Tensor],
    ) -> Sequence[Tensor]:
        """A site would have been reused. `computed` is called next.

        Args:
            guess: its outputs as predicted.
            truth: its outputs as computed.
            features: what would be stored of it.

        Returns:
            The outputs that the run goes on with.
        """
        return guess if self.closed else truth


NOBODY = Observer()

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
    """The one that watches; NOBODY where there is none."""
    return _observer.get() or NOBODY
