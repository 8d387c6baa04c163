"""What methods share that compute as many ticks as a speed-up allows: counts, guards, and what the report says of few ticks."""

from dataclasses import dataclass, replace

from diffcache.config import CacheConfig, RunFacts
from diffcache.recipes.few_steps import leaves, proposal, refuse_beyond
from diffcache.schedulers.guards import Guards
from diffcache.schedulers.ticks import spread
from diffcache.store.streams import Basis

FEW = 8
"""With fewer computed ticks than this, as many plain steps were nearer to the full run in many regimes. Our choice."""


@dataclass(frozen=True, kw_only=True)
class BudgetedConfig(CacheConfig):
    """Predicts velocities of the whole denoiser, corrects them, and may be given a speed-up.

    Attributes:
        speedup: ticks of the run over computed ticks, at least; 1 computes everything. None: no number is given. A run of fewer steps than
            this raises a ConfigError; one of a single step computes it.
        warmup_steps: None: 1. These ticks, and those that `max_consecutive_reuses` asks for, are computed even if the
            speed-up is then missed.
    """

    speedup: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("speedup", 1)

    @property
    def stored_basis(self) -> Basis:
        return "velocity"

    @property
    def own_hindsight(self) -> bool:
        return True

    def most_ticks(self, run: RunFacts) -> int | None:
        if run.num_ticks is None or self.speedup is None:
            return None
        if run.num_ticks > 1:
            refuse_beyond(self.speedup, run.num_ticks)
        return allowed(run.num_ticks, self.speedup)

    def remark(self, run: RunFacts) -> str | None:
        most = self.most_ticks(run)
        if most is None or self.speedup is None or most >= FEW or most == run.num_ticks:
            return None
        return f"{leaves(self.speedup, most)}, too few for a good prediction: {proposal(most, run)}"

    def warmup(self, run: RunFacts) -> int:
        return 1

    def guards(self, run: RunFacts) -> Guards:
        """A tail is computed as far as the budget goes."""
        guards, most = super().guards(run), self.most_ticks(run)
        if most is None:
            return guards
        left = choosable(most, run) - max(guards.warmup_steps, 1)
        return replace(guards, tail_steps=max(min(guards.tail_steps, left), 0))


def allowed(num_ticks: int, speedup: float) -> int:
    """How many ticks may be computed: at least the first."""
    return max(int(num_ticks / speedup + 1e-9), 1)


def choosable(most: int, run: RunFacts) -> int:
    """How many computed ticks can be chosen: every further denoiser must compute its first call, whenever that comes."""
    if most == run.num_ticks:  # and computes all the others
        return most
    return max(most - run.experts + 1, 1)


def evenly(num_ticks: int, count: int, guards: Guards) -> list[int]:
    """`count` evenly spaced ticks of a run, and all of those that guards force at its end."""
    tail = min(max(guards.tail_steps - 1, 0), num_ticks - 1)
    even = spread(num_ticks - tail, count - tail, guards.warmup_steps, compute_last=guards.tail_steps > 0)
    return [*even, *range(num_ticks - tail, num_ticks)]
