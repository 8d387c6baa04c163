"""Curvature: extrapolates the output, and computes a tick where it bends. Our own method, and the default."""

from dataclasses import dataclass
from typing import ClassVar

from diffcache.config import CacheConfig, RunFacts
from diffcache.method_config import method
from diffcache.prediction.predictors import Polynomial
from diffcache.schedulers.error_control import ErrorControl
from diffcache.schedulers.moments import Axis
from diffcache.store.streams import Basis


@method
@dataclass(frozen=True, kw_only=True)
class CurvatureConfig(CacheConfig):
    """Where: the whole denoiser. When: error control. How: extrapolate the output quadratically or linearly, or hold it.

    At each computed tick the divided differences of the output estimate the error of a parabola, of a straight line and of
    holding. The ticks after it are reused, each with the predictor of the smallest expected error, as long as the sum of
    these errors stays below the threshold. The next computed tick corrects the reused ones (`hindsight`).

    Attributes:
        threshold: bound on the error expected since the last computed tick, summed over the ticks, as a fraction of the
            output (0.05 is 5 %); 0 computes everything.
        order: the highest order of extrapolation: 1 or 2.
        axis: what curves are drawn over: "angle" (atan2(noise, signal)), "sigma" (the noise scheduler's own level) or "tick".
        warmup_steps: None: 3, the fewest ticks that show a curvature.
    """

    name: ClassVar[str] = "curvature"

    threshold: float = 0.05
    order: int = 2
    axis: Axis = "angle"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("threshold", 0)
        self._choose("order", 1, 2)
        self._choose("axis", "angle", "sigma", "tick")

    @property
    def stored_basis(self) -> Basis:
        return "velocity"

    @property
    def own_hindsight(self) -> bool:
        return True

    def predictor_for(self, run: RunFacts) -> Polynomial:
        return Polynomial(self.order, self.axis)

    def scheduler(self, run: RunFacts) -> ErrorControl:
        return ErrorControl(self.threshold, self.order, self.axis)

    def warmup(self, run: RunFacts) -> int:
        return 3
