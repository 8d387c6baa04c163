"""Curvature: goes straight on, and computes where the output bends: our own method, and the default."""

from dataclasses import dataclass
from typing import ClassVar

from diffcache.config import CacheConfig, RunFacts
from diffcache.predictors import Polynomial
from diffcache.schedulers.error_control import ErrorControl
from diffcache.schedulers.moments import Axis


@dataclass(frozen=True, kw_only=True)
class CurvatureConfig(CacheConfig):
    """Where: the whole denoiser. When: error control. How: extrapolate the output linearly, or hold it.

    At each computed tick the second divided difference of the output says how fast a straight line goes astray, and the
    first how fast holding does; the tick after it is reused, by the better of the two, while the sum of what that is
    expected to cost stays below the threshold.

    Attributes:
        threshold: bound on the error expected since the last computed tick, summed over the ticks, as a fraction of the
            output (0.05 is 5 %); 0 computes everything.
        axis: what the line is drawn over: "sigma" (the noise level) or "tick".
        warmup_steps: None: 3, the least that shows a bend.
    """

    name: ClassVar[str] = "curvature"

    threshold: float = 0.05
    axis: Axis = "sigma"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("threshold", 0)
        self._choose("axis", "sigma", "tick")

    @property
    def residual(self) -> bool:
        return False

    def predictor_for(self, run: RunFacts) -> Polynomial:
        return Polynomial(1, self.axis)

    def scheduler(self, run: RunFacts) -> ErrorControl:
        return ErrorControl(self.threshold, self.axis)

    def warmup(self, run: RunFacts) -> int:
        return 3
