"""SeaCache (arXiv 2602.18993): reuse the stack while the picture below the noise changes little."""

from dataclasses import dataclass
from typing import ClassVar

from diffcache.config import CacheConfig, RunFacts
from diffcache.method_config import method
from diffcache.prediction.predictors import Hold, Polynomial, Predictor
from diffcache.schedulers.accumulator import Accumulator
from diffcache.schedulers.spectral import SpectralDrift


@method
@dataclass(frozen=True, kw_only=True)
class SeaCacheConfig(CacheConfig):
    """Where: the stack, as one residual for each stream. When: an accumulator. How: a straight line over the ticks.

    E grows at each tick by mean|f_s - f_{s-1}| / mean|f_{s-1}|, where f are the denoiser's latents through a Wiener filter for
    the tick's noise level (see `diffcache.schedulers.spectral`). Where noise levels are unknown, everything is computed. First and last
    tick are computed. The paper filters features of the denoiser's input. That it is latents, the straight line, the cap and the other
    defaults are those of Diffusers' SeaCache.

    Attributes:
        threshold: the tick is reused while E stays below it; 0 computes everything.
        order: degree of the line through residuals of computed ticks: 1, or 0 to hold the newest.
        power: exponent of the frequency by which pictures' power falls; 3 is the authors' for video.
        max_consecutive_reuses: 2, as in Diffusers.
        warmup_steps: None: 1, as published.
    """

    name: ClassVar[str] = "seacache"

    threshold: float = 0.25
    order: int = 1
    power: float = 3.0
    max_consecutive_reuses: int | None = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("threshold", 0)
        self._choose("order", 0, 1)
        self._check("power", 0)

    def sites(self, run: RunFacts) -> tuple[str, ...]:
        return ("stack",)

    def scheduler(self, run: RunFacts) -> Accumulator:
        return Accumulator(
            SpectralDrift([moment.angle for moment in run.moments], self.power), self.threshold
        )

    def warmup(self, run: RunFacts) -> int:
        return 1

    def predictor_for(self, run: RunFacts) -> Predictor:
        return Polynomial(1, "tick") if self.order else Hold()
