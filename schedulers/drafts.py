"""SpeCa's cache scheduler: every tick is drafted by prediction, and one site tells whether the draft is good enough."""

from collections.abc import Sequence

import torch
from torch import Tensor

from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.steps import Decision, Step

EPS = 1e-10
"""Added to divisors."""


class Drafts(CacheScheduler):
    """Reuses every tick, but verifies it: it is computed if the error exceeds tau = max(threshold * decay^progress, floor).

    The error is mean(|p - v| / |v|) over the elements of the last site, p predicted and v computed, of the worst stream.
    Progress is the share of the run's ticks that is over.

    Args:
        threshold: tau at the start of the run; 0 computes everything.
        decay: tau at the end of the run over tau at its start.
        floor: the least tau.
        unverified: how many reused ticks after each computed one are not verified.
    """

    adaptive = True
    by_site = False

    def __init__(self, threshold: float, decay: float, floor: float, unverified: int) -> None:
        self.threshold = threshold
        self.decay = decay
        self.floor = floor
        self.unverified = unverified
        self.drafted: list[int] = []

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        if not self.threshold:
            return Decision.COMPUTE
        follows = self.drafted[-1:] == [step.tick - 1]
        self.drafted = [*(self.drafted if follows else []), step.tick]
        return Decision.PREDICT

    def verifies(self, step: Step) -> bool:
        return len(self.drafted) > self.unverified

    def accepts(self, step: Step, guess: Sequence[Tensor], truth: Sequence[Tensor]) -> bool:
        errors = torch.stack([_relative_error(p, v) for p, v in zip(guess, truth, strict=True)])
        accepted = float(errors.amax()) <= self.tau(step)
        if not accepted:  # NaN among them
            self.drafted = []
        return accepted

    def tau(self, step: Step) -> float:
        """The bound at a tick. Where the length of the run is unknown, that of its start."""
        progress = step.tick / step.num_ticks if step.num_ticks else 0.0
        bound: float = self.threshold * self.decay**progress
        return max(bound, self.floor)


def _relative_error(guess: Tensor, truth: Tensor) -> Tensor:
    guess, truth = guess.float(), truth.float()
    return ((guess - truth).abs() / (truth.abs() + EPS)).mean()
