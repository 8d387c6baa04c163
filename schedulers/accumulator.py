"""The adaptive cache scheduler: reuse while the accumulated signal stays below a threshold."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.signals import Signal
from diffcache.schedulers.steps import Decision, Step


class Accumulator(CacheScheduler):
    """E <- E + signal at each tick; reuse if and only if E < threshold; a computed tick sets E to 0.

    Args:
        signal: what is measured at each tick.
        threshold: bound on E.
        accumulate: False: E is the signal of this tick alone.

    A threshold of 0 computes everything, also where a signal is below 0, as a published polynomial of a small change can be.
    With several streams (video and audio) each has its own E, and all are computed when one of them reaches the threshold.
    A tick without a signal (no history yet) is computed. A tick at an unchanged noise level adds nothing.
    """

    adaptive = True

    def __init__(self, signal: Signal, threshold: float, *, accumulate: bool = True) -> None:
        self.signal = signal
        self.accumulate = accumulate
        self.threshold = threshold
        self.error: list[float] = []

    def measure(self, latents: Sequence[Tensor]) -> Tensor | None:
        return self.signal.measure(latents)

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        if signal is None:
            return Decision.COMPUTE
        self.error = self.error or [0.0] * len(signal)
        if not self.accumulate:
            self.error = list(signal)
        elif not step.repeats_sigma:
            self.error = [e + s for e, s in zip(self.error, signal, strict=True)]
        below = self.threshold > 0 and all(e < self.threshold for e in self.error)
        return Decision.PREDICT if below else Decision.COMPUTE

    def arrived(self, latents: Sequence[Tensor]) -> None:
        self.signal.arrived(latents)

    def computed(self, latents: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self.error = []
        self.signal.computed(latents, outputs)

    def held(self) -> Iterator[Tensor]:
        return self.signal.held()
