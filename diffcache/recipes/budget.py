"""Budget: computes as many ticks as a speed-up allows, evenly spread, and extrapolates in between."""

from dataclasses import dataclass
from typing import ClassVar

from diffcache.config import CacheConfig, RunFacts
from diffcache.predictors import Polynomial, Predictor
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.interval import Interval
from diffcache.schedulers.moments import Axis
from diffcache.schedulers.ticks import Ticks

ROOMY = 16
"""From this many ticks on, three at the start gain on the testbeds more than they cost (docs/calibration.md)."""


@dataclass(frozen=True, kw_only=True)
class BudgetConfig(CacheConfig):
    """Where: the whole denoiser. When: so many ticks as the budget allows: the first ones, the last, the others spread
    evenly between them. How: extrapolate, or hold where the last prediction was worse than holding.

    Placing ticks where most changes is far worse than spreading them: errors made early are carried to the end.

    Attributes:
        speedup: ticks of the run over computed ticks, at least; 1 computes everything.
        order: degree of the polynomial through the last `order + 1` computed outputs, 0 to 2; 0 holds the last one.
        axis: what it is a polynomial in: "sigma" (the noise level) or "tick".
        warmup_steps: None: 3; 1 where the budget is below 16 ticks.
    """

    name: ClassVar[str] = "budget"

    speedup: float = 2.0
    order: int = 1
    axis: Axis = "sigma"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("speedup", 1)
        self._choose("order", 0, 1, 2)
        self._choose("axis", "sigma", "tick")

    @property
    def residual(self) -> bool:
        return False

    @property
    def watch(self) -> float:
        return float("inf")  # it may hold instead of predicting, but never asks for more than the budget

    def predictor_for(self, run: RunFacts) -> Predictor:
        return Polynomial(self.order, self.axis)

    def scheduler(self, run: RunFacts) -> CacheScheduler:
        if run.num_ticks is None:
            return Interval(max(round(self.speedup + 0.5), 1))
        return Ticks(
            spread(run.num_ticks, allowed(run.num_ticks, self.speedup), self.guards(run).warmup_steps)
        )

    def warmup(self, run: RunFacts) -> int:
        return 3 if run.num_ticks is None else warmup_of(allowed(run.num_ticks, self.speedup))


def allowed(num_ticks: int, speedup: float) -> int:
    """How many ticks may be computed: at least the first."""
    return max(int(num_ticks / speedup + 1e-9), 1)


def warmup_of(count: int) -> int:
    """Ticks at the start of a budget of so many: the first outputs change most, but small budgets cannot spare them."""
    return 3 if count >= ROOMY else 1


def spread(num_ticks: int, count: int, warmup: int) -> list[int]:
    """So many ticks: the warm-up, the last one, and the others evenly in between."""
    first = list(range(min(warmup, count)))
    left = count - len(first)
    begin, end = len(first) - 1, num_ticks - 1
    return [*first, *(begin + round((end - begin) * i / left) for i in range(1, left + 1))]
