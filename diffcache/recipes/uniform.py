"""Uniform: compute every so many ticks, reuse between. The baseline that every other method has to beat."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from diffcache.config import CacheConfig, RunFacts
from diffcache.method_config import method
from diffcache.prediction.predictors import Hold, Polynomial, Predictor
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.interval import Interval
from diffcache.schedulers.moments import Axis
from diffcache.schedulers.steps import MODEL
from diffcache.store.streams import Basis


@method
@dataclass(frozen=True, kw_only=True)
class UniformConfig(CacheConfig):
    """Where: the whole denoiser. When: a fixed interval. How: hold, or extrapolate.

    Attributes:
        interval: distance between computed ticks, counted from the last warm-up tick; 1 computes everything.
        predictor: "polynomial" through the last `order + 1` computed ticks, or "hold".
        order: degree of the polynomial, 0 to 2; 0 holds.
        axis: what it is a polynomial in: "angle" (atan2(noise, signal)), "sigma" (the noise scheduler's own level) or "tick".
        basis: what is held or extrapolated: what the denoiser adds to its input ("residual"), its "output", or the
            "velocity", whatever the denoiser predicts. None: the velocity of a whole denoiser is extrapolated, and
            residuals are held.
        site: where: "model", or inside the denoiser "stack" (all blocks), "block" (each), "attention",
            "feed-forward", "sub-layer", a UNet's "depth 1", a range ("stack[3..7]", "blocks.3..blocks.7"), or the name
            of a site that `discover` lists. Sub-layers and depths always hold or extrapolate their output.
        watch_bound: at each computed tick the prediction is compared with the computed output. Where holding would have
            been nearer, the next ticks hold; where both are off by more than this fraction of the output, the next ticks
            are computed. None: nothing is compared.
        warmup_steps: None: 1.
    """

    name: ClassVar[str] = "uniform"

    interval: int = 2
    predictor: Literal["hold", "polynomial"] = "polynomial"
    order: int = 0
    axis: Axis = "angle"
    basis: Basis | None = None
    site: str = "model"
    watch_bound: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("interval", 1, whole=True)
        self._check("order", 0, whole=True)
        self._check("watch_bound", 0)
        self._check_site()
        if self.order > 2:
            raise ConfigError(f"uniform: order must be 0, 1 or 2, not {self.order!r}.")
        self._choose("predictor", "hold", "polynomial")
        self._choose("axis", "angle", "sigma", "tick")
        self._choose("basis", None, "residual", "output", "velocity")

    def sites(self, run: RunFacts) -> tuple[str, ...]:
        return (self.site,)

    @property
    def stored_basis(self) -> Basis:
        if self.basis is not None:
            return self.basis
        extrapolates = self.order > 0 and self.predictor == "polynomial"
        return "velocity" if extrapolates and self.site == MODEL else "residual"

    def scheduler(self, run: RunFacts) -> Interval:
        return Interval(self.interval, first=max(self.guards(run).warmup_steps - 1, 0))

    def warmup(self, run: RunFacts) -> int:
        return 1

    def predictor_for(self, run: RunFacts) -> Predictor:
        return Hold() if self.predictor == "hold" else Polynomial(self.order, self.axis)
