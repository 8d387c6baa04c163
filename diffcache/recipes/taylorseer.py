"""TaylorSeer (arXiv 2503.06923): compute every so many ticks, and expand each sub-layer's output in between."""

from dataclasses import dataclass
from typing import ClassVar

from diffcache.config import CacheConfig, RunFacts
from diffcache.method_config import method
from diffcache.prediction.predictors import Predictor, Taylor
from diffcache.schedulers.interval import Interval
from diffcache.store.streams import Basis

PUBLISHED = {
    "FluxTransformer2DModel": (6, 3, 1),
    "HunyuanVideoTransformer3DModel": (5, 1, 1),
    "WanTransformer3DModel": (5, 1, 1),
    "HiDreamImageTransformer2DModel": (4, 1, 2),
    "DiTTransformer2DModel": (4, 2, 4),
}
"""Denoiser -> (interval, warm-up in ticks, order), from the authors' scripts."""

GENERAL = (5, 3, 1)


@method
@dataclass(frozen=True, kw_only=True)
class TaylorSeerConfig(CacheConfig):
    """Where: every attention and feed-forward. When: a fixed interval. How: a Taylor expansion in ticks.

    Attributes:
        interval: distance between computed ticks, counted from the last warm-up tick; 1 computes everything.
        order: of the expansion; 0 holds.
        site: "sub-layer", as published for Flux, HunyuanVideo and Wan; "stack" for the cheap variant that keeps the last
            block's output only.
        warmup_steps: None: as published.
        tail_steps: 0, as published.

    None: as published for the denoiser (interval 6, warm-up 3, order 1 for Flux; 5, 1, 1 for HunyuanVideo and Wan; 4, 1, 2
    for HiDream; 4, 2, 4 for DiT); 5, 3, 1 elsewhere. Memory: order + 1 outputs of every sub-layer and branch.
    """

    name: ClassVar[str] = "taylorseer"

    interval: int | None = None
    order: int | None = None
    site: str = "sub-layer"
    tail_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("interval", 1, whole=True)
        self._check("order", 0, whole=True)
        self._check_site()

    def sites(self, run: RunFacts) -> tuple[str, ...]:
        return (self.site,)

    @property
    def stored_basis(self) -> Basis:
        return "output"

    def scheduler(self, run: RunFacts) -> Interval:
        interval, _, _ = PUBLISHED.get(run.denoiser_class, GENERAL)
        return Interval(self.interval or interval, first=max(self.guards(run).warmup_steps - 1, 0))

    def warmup(self, run: RunFacts) -> int:
        _, warmup, _ = PUBLISHED.get(run.denoiser_class, GENERAL)
        return warmup

    def predictor_for(self, run: RunFacts) -> Predictor:
        _, _, order = PUBLISHED.get(run.denoiser_class, GENERAL)
        return Taylor(order if self.order is None else self.order, first=self.guards(run).warmup_steps - 2)
