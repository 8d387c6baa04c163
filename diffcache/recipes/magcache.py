"""MagCache (arXiv 2506.09045): reuse the stack while the known ratios of its residual's magnitude stay near 1."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from diffcache.config import CacheConfig, RunFacts
from diffcache.method_config import method
from diffcache.prediction.predictors import Hold, Predictor, Scaled
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.interval import Interval
from diffcache.schedulers.magnitude import Magnitude, resampled


class Published(NamedTuple):
    """Threshold, cap and retention of a model, its ratios, and the index among these of a tick that is never reused."""

    threshold: float
    cap: int
    retention: float
    ratios: tuple[float, ...]
    outlier: int | None = None


FLUX = (
    1, 1.21094, 1.11719, 1.07812, 1.0625, 1.03906, 1.03125, 1.03906, 1.02344, 1.03125, 1.02344, 0.98047, 1.01562, 1.00781,
    1, 1.00781, 1, 1.00781, 1, 1, 0.99609, 0.99609, 0.98047, 0.98828, 0.96484, 0.95703, 0.93359, 0.89062,
)  # fmt: skip
WAN_1_3B = (
    1, 1.0124, 1.00166, 0.99791, 0.99682, 0.99634, 0.99567, 0.99416, 0.99578, 0.9957, 0.99511, 0.99535, 0.99552, 0.99541,
    0.9954, 0.99489, 0.99518, 0.99484, 0.99481, 0.99415, 0.99419, 0.99396, 0.99388, 0.99349, 0.99309, 0.9927, 0.99228,
    0.99171, 0.99137, 0.99068, 0.99005, 0.98944, 0.98849, 0.98758, 0.98644, 0.98504, 0.9836, 0.98202, 0.97977, 0.97717,
    0.9741, 0.97003, 0.96538, 0.9593, 0.95086, 0.94013, 0.92402, 0.90241, 0.86821, 0.81838,
)  # fmt: skip

PUBLISHED = {
    "FluxTransformer2DModel": Published(0.24, 5, 0.1, FLUX, outlier=11),
    "WanTransformer3DModel": Published(0.12, 2, 0.2, WAN_1_3B),
}
"""By denoiser: FLUX.1-dev at 28 ticks; Wan 2.1 T2V 1.3B at 50 (of the conditional pass, which leads)."""

GENERAL = Published(0.06, 3, 0.2, FLUX)
"""Elsewhere: Diffusers' options with Flux's ratios, which are not the model's own: calibrate before relying on it."""


@method
@dataclass(frozen=True, kw_only=True)
class MagCacheConfig(CacheConfig):
    """Where: the stack, as one residual for each stream. When: a static schedule made from ratios. How: hold, or scale.

    Attributes:
        threshold: bound on the sum of |1 - product of ratios| since the last computed tick; 0 computes everything.
        max_consecutive_reuses: cap K.
        ratios: of the residual's magnitude (norm of each token's channels, mean over tokens) to the tick before, one
            for each tick, starting with 1; resampled to runs of other lengths.
        predictor: "hold", as published, or "scaled" by the ratios.
        warmup_steps: None: a published share of the run (0.1 for Flux, else 0.2).
        tail_steps: 0, as published: the ratios fall at the end, which computes.

    None: as published for FLUX.1-dev on every Flux, as for Wan 2.1 T2V 1.3B on every Wan, and elsewhere Diffusers' defaults with Flux's
    ratios. The leading guidance pass decides for all. For Wan the authors count each pass with ratios of its own. Where the length of
    the run is unknown, everything is computed.
    """

    name: ClassVar[str] = "magcache"

    threshold: float | None = None
    ratios: tuple[float, ...] | None = None
    predictor: Literal["hold", "scaled"] = "hold"
    tail_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("threshold", 0)
        self._check_numbers("ratios")
        if self.ratios is not None and min(self.ratios) <= 0:
            raise ConfigError(f"magcache: ratios must be a tuple of numbers above 0, not {self.ratios!r}.")
        self._choose("predictor", "hold", "scaled")

    def sites(self, run: RunFacts) -> tuple[str, ...]:
        return ("stack",)

    def scheduler(self, run: RunFacts) -> CacheScheduler:
        if run.num_ticks is None:
            return Interval(1)
        published, ticks = PUBLISHED.get(run.denoiser_class, GENERAL), run.num_ticks
        threshold = published.threshold if self.threshold is None else self.threshold
        cap = self.max_consecutive_reuses or published.cap
        begin, indices = self.guards(run).warmup_steps, range(len(published.ratios))
        forced = [
            tick
            for tick, index in enumerate(resampled(indices, ticks))
            if self.ratios is None and index == published.outlier
        ]
        return Magnitude(self._ratios(run), threshold, cap if threshold else 0, begin, forced)

    def warmup(self, run: RunFacts) -> int:
        retention = PUBLISHED.get(run.denoiser_class, GENERAL).retention
        return int(retention * (run.num_ticks or 0) + 0.5)

    def predictor_for(self, run: RunFacts) -> Predictor:
        return Hold() if self.predictor == "hold" else Scaled(self._ratios(run))

    def _ratios(self, run: RunFacts) -> list[float]:
        published = PUBLISHED.get(run.denoiser_class, GENERAL).ratios
        return resampled(published if self.ratios is None else self.ratios, run.num_ticks or 1)
