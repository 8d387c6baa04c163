"""Budget: computes as many ticks as a speed-up allows, evenly spaced."""

from dataclasses import dataclass, replace
from typing import ClassVar

from diffcache.config import CacheConfig, RunFacts
from diffcache.method_config import method
from diffcache.prediction.predictors import Polynomial, Predictor
from diffcache.schedulers.error_control import ErrorControl
from diffcache.schedulers.given_ticks import GivenTicks, threshold_for_speedup
from diffcache.schedulers.guards import Guards
from diffcache.schedulers.moments import Axis
from diffcache.schedulers.ticks import spread
from diffcache.store.streams import Basis

FEW = 8
"""With fewer computed ticks than this, as many plain steps were nearer to the full run in many regimes (docs/regimes.md)."""


@method
@dataclass(frozen=True, kw_only=True)
class BudgetConfig(CacheConfig):
    """Where: the whole denoiser. When: at evenly spaced ticks, as many as the speed-up allows. How: extrapolate the output linearly, or
    hold it where that has the smaller expected error.

    Where the length of the run is unknown, error control has a fixed threshold: it gave this speed-up on other runs.

    Attributes:
        speedup: ticks of the run over computed ticks, at least; 1 computes everything.
        order: the highest order of extrapolation, 0 to 2; 0 holds.
        axis: what curves are drawn over: "angle" (atan2(noise, signal)), "sigma" (the noise scheduler's own level) or "tick".
        warmup_steps: None: 1; 3 where the length of the run is unknown. These ticks, and those that
            `max_consecutive_reuses` asks for, are computed even if the speed-up is then missed.
    """

    name: ClassVar[str] = "budget"

    speedup: float = 2.0
    order: int = 1
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

    def remark(self, run: RunFacts) -> str | None:
        most = self.most_ticks(run)
        if most is None or most >= FEW or most == run.num_ticks:
            return None
        return (
            f"speedup={self.speedup} leaves {most} computed ticks, which are few for a curve: num_inference_steps={most} may be as "
            "good, compare it"
        )

    def predictor_for(self, run: RunFacts) -> Predictor:
        return Polynomial(self.order, self.axis)

    def scheduler(self, run: RunFacts) -> ErrorControl:
        most = self.most_ticks(run)
        if run.num_ticks is None or most is None:
            return ErrorControl(threshold_for_speedup(self.speedup), self.order, self.axis)
        return GivenTicks(
            self._ticks(run.num_ticks, choosable(most, run), self.guards(run)), self.order, self.axis
        )

    def warmup(self, run: RunFacts) -> int:
        return 3 if self.most_ticks(run) is None else 1

    def _ticks(self, num_ticks: int, count: int, guards: Guards) -> list[int]:
        """`count` ticks of a run; those before the last one that guards force at its end are computed as well."""
        tail = max(guards.tail_steps - 1, 0)
        even = spread(num_ticks - tail, count - tail, guards.warmup_steps, compute_last=guards.tail_steps > 0)
        return [*even, *range(num_ticks - tail, num_ticks)]

    def guards(self, run: RunFacts) -> Guards:
        """A tail is computed as far as the budget goes."""
        guards, most = super().guards(run), self.most_ticks(run)
        if most is None:
            return guards
        left = choosable(most, run) - guards.warmup_steps
        return replace(guards, tail_steps=max(min(guards.tail_steps, left), 0))


def allowed(num_ticks: int, speedup: float) -> int:
    """How many ticks may be computed: at least the first."""
    return max(int(num_ticks / speedup + 1e-9), 1)


def choosable(most: int, run: RunFacts) -> int:
    """How many computed ticks can be chosen: every further denoiser must compute its first call, whenever that comes."""
    return max(most - run.experts + 1, 1)
