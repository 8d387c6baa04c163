"""Uniform: compute every so many ticks, reuse between. The baseline that every other method has to beat."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from diffcache.config import CacheConfig, RunFacts
from diffcache.predictors import Axis, Hold, Polynomial, Predictor
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.interval import Interval


@dataclass(frozen=True, kw_only=True)
class UniformConfig(CacheConfig):
    """Where: the whole denoiser. When: a fixed interval. How: hold, or extrapolate the residual v - x.

    Attributes:
        interval: distance between computed ticks, counted from the last warm-up tick; 1 computes everything.
        predictor: "polynomial" through the last `order + 1` computed ticks, or "hold".
        order: degree of the polynomial, 0 to 2; 0 holds.
        axis: what it is a polynomial in: "sigma" (the noise level) or "tick".
        warmup_steps: None: 1.
    """

    name: ClassVar[str] = "uniform"

    interval: int = 2
    predictor: Literal["hold", "polynomial"] = "polynomial"
    order: int = 0
    axis: Axis = "sigma"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("interval", 1, whole=True)
        self._check("order", 0, whole=True)
        if self.order > 2:
            raise ConfigError(f"uniform: order must be 0, 1 or 2, not {self.order!r}.")
        self._choose("predictor", "hold", "polynomial")
        self._choose("axis", "sigma", "tick")

    def scheduler(self, run: RunFacts) -> Interval:
        return Interval(self.interval, self.guards(run).warmup_steps)

    def warmup(self, run: RunFacts) -> int:
        return 1

    def predictor_for(self, run: RunFacts) -> Predictor:
        return Hold() if self.predictor == "hold" else Polynomial(self.order, self.axis)
