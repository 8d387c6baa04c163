"""Even: as many ticks as a speed-up allows, evenly spaced. The simple method that planned ticks are compared with."""

import math
from dataclasses import dataclass
from typing import ClassVar

from diffcache.config import RunFacts
from diffcache.method_config import method
from diffcache.prediction.predictors import Polynomial, Predictor
from diffcache.recipes.budgeted import BudgetedConfig, allowed, choosable, evenly
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.interval import Interval
from diffcache.schedulers.moments import Axis
from diffcache.schedulers.ticks import Ticks


@method
@dataclass(frozen=True, kw_only=True)
class EvenConfig(BudgetedConfig):
    """Where: the whole denoiser. When: at evenly spaced ticks, as many as the speed-up allows. How: extrapolate the output.

    Where the length of the run is unknown, it computes every nth tick.

    Attributes:
        speedup: ticks of the run over computed ticks, at least; 1 computes everything.
        order: degree of the polynomial that extrapolates, 0 to 2; 0 holds.
        axis: what it is a polynomial in: "angle" (atan2(noise, signal)), "sigma" (the noise scheduler's own level) or "tick".
        warmup_steps: None: 1. These ticks, and those that `max_consecutive_reuses` asks for, are computed even if the
            speed-up is then missed.
    """

    name: ClassVar[str] = "even"

    speedup: float = 2.0
    order: int = 1
    axis: Axis = "angle"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._choose("order", 0, 1, 2)
        self._choose("axis", "angle", "sigma", "tick")

    def predictor_for(self, run: RunFacts) -> Predictor:
        return Polynomial(self.order, self.axis)

    def scheduler(self, run: RunFacts) -> CacheScheduler:
        if run.num_ticks is None:
            return Interval(math.ceil(self.speedup))
        count = choosable(allowed(run.num_ticks, self.speedup), run)
        return Ticks(evenly(run.num_ticks, count, self.guards(run)))
