"""Budget: computes as many ticks as a speed-up allows, where errors of the output matter most."""

from dataclasses import dataclass, replace
from typing import ClassVar

from diffcache.config import CacheConfig, RunFacts
from diffcache.method_config import method
from diffcache.prediction.predictors import Polynomial, Predictor
from diffcache.schedulers.error_control import ErrorControl
from diffcache.schedulers.guards import Guards
from diffcache.schedulers.moments import Axis
from diffcache.schedulers.tick_budget import GivenTicks, TickBudget, threshold_for_speedup
from diffcache.schedulers.ticks import spread
from diffcache.store.streams import Basis


@method
@dataclass(frozen=True, kw_only=True)
class BudgetConfig(CacheConfig):
    """Where: the whole denoiser. When: error control, weighted by each tick's influence on the result; the threshold is adjusted
    during the run until the number of computed ticks fits. How: extrapolate the output quadratically or linearly, or hold it.

    Where two denoisers share a run (Wan 2.2), computed ticks are spaced evenly instead, because neither knows how many the
    other will compute. Where the length of the run is unknown, the threshold is fixed: it gave this speed-up on other runs.

    Attributes:
        speedup: ticks of the run over computed ticks, at least; 1 computes everything.
        order: the highest order of extrapolation, 0 to 2; 0 holds.
        axis: what curves are drawn over: "angle" (atan2(noise, signal)), "sigma" (the noise scheduler's own level) or "tick".
        warmup_steps: None: 2; an eighth of the computed ticks where these are fewer than 16; 3 where the length of the run is
            unknown. These ticks, and those that `max_consecutive_reuses` asks for, are computed even if the speed-up is
            then missed.
    """

    name: ClassVar[str] = "budget"

    speedup: float = 2.0
    order: int = 2
    axis: Axis = "angle"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("speedup", 1)
        self._choose("order", 0, 1, 2)
        self._choose("axis", "angle", "sigma", "tick")

    @property
    def stored_basis(self) -> Basis:
        return "velocity"

    @property
    def own_hindsight(self) -> bool:
        return True

    def most_ticks(self, run: RunFacts) -> int | None:
        return None if run.num_ticks is None else allowed(run.num_ticks, self.speedup)

    def predictor_for(self, run: RunFacts) -> Predictor:
        return Polynomial(self.order, self.axis)

    def scheduler(self, run: RunFacts) -> ErrorControl:
        most = self.most_ticks(run)
        if run.num_ticks is None or most is None:
            return ErrorControl(threshold_for_speedup(self.speedup), self.order, self.axis)
        if run.experts > 1:
            placed = spread(run.num_ticks, _planned(most, run), self.warmup(run))
            return GivenTicks(placed, self.order, self.axis)
        return TickBudget(run.num_ticks, most, self.guards(run).tail_steps, self.order, self.axis)

    def warmup(self, run: RunFacts) -> int:
        most = self.most_ticks(run)
        return 3 if most is None else max(min(2, _planned(most, run) // 8), 1)

    def guards(self, run: RunFacts) -> Guards:
        """A tail is computed as far as the budget goes."""
        guards, most = super().guards(run), self.most_ticks(run)
        if most is None:
            return guards
        left = _planned(most, run) - guards.warmup_steps
        return replace(guards, tail_steps=max(min(guards.tail_steps, left), 0))


def allowed(num_ticks: int, speedup: float) -> int:
    """How many ticks may be computed: at least the first."""
    return max(int(num_ticks / speedup + 1e-9), 1)


def _planned(most: int, run: RunFacts) -> int:
    """How many computed ticks can be chosen: every further denoiser must compute its first call, whenever that comes."""
    return max(most - run.experts + 1, 1)
