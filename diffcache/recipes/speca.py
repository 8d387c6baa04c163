"""SpeCa (arXiv 2509.11628): forecast every tick, and verify the forecast on the last sub-layer."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from diffcache.config import CacheConfig, RunFacts
from diffcache.method_config import method
from diffcache.prediction.predictors import Predictor, Taylor
from diffcache.schedulers.drafts import Drafts
from diffcache.schedulers.guards import Guards
from diffcache.store.streams import Basis


class Published(NamedTuple):
    """The bound with its decay and floor, how many ticks are not verified, the cap on reuses, order and warm-up."""

    threshold: float
    decay: float
    floor: float
    unverified: int
    cap: int
    order: int
    warmup: int


GENERAL = Published(7.0, 0.3, 0.1, 2, 8, 2, 3)
"""FLUX.1-dev's, and elsewhere."""

PUBLISHED = {
    "HunyuanVideoTransformer3DModel": Published(1.0, 0.1, 0.1, 4, 12, 1, 1),
    "DiTTransformer2DModel": Published(0.1, 0.01, 0.01, 2, 5, 4, 3),
}
"""By denoiser, from the authors' scripts."""


@method
@dataclass(frozen=True, kw_only=True)
class SpeCaConfig(CacheConfig):
    """Where: every attention and feed-forward. When: until a forecast fails its verification. How: a Taylor expansion in ticks.

    At a verified tick the last sub-layer of the leading guidance pass is computed as well (in Flux that is the last block). If
    mean(|p - v| / |v|), p forecast and v computed, exceeds max(threshold * decay^progress, floor), the forecast is rejected:
    the tick is computed in full, as in the paper. The authors' code computes the tick after it instead; and it forecasts the tick
    after every computed one, in the warm-up too.

    Attributes:
        threshold: bound on the error at the start of the run; 0 computes everything.
        decay: by what factor the bound shrinks over the run.
        floor: the bound stays above this.
        unverified: how many ticks after each computed one are reused without verifying.
        max_consecutive_reuses: as published.
        order: of the expansion; 0 holds.
        warmup_steps: as published.
        tail_steps: 0, as published.

    None: as published for the denoiser (DiT, HunyuanVideo), and elsewhere as for Flux: 7, 0.3, 0.1, 2, 8, 2, 3.
    """

    name: ClassVar[str] = "speca"

    threshold: float | None = None
    decay: float | None = None
    floor: float | None = None
    unverified: int | None = None
    order: int | None = None
    tail_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("threshold", "decay", "floor"):
            self._check(option, 0)
        self._check("unverified", 0, whole=True)
        self._check("order", 0, whole=True)

    def sites(self, run: RunFacts) -> tuple[str, ...]:
        return ("sub-layer",)

    @property
    def stored_basis(self) -> Basis:
        return "output"

    def scheduler(self, run: RunFacts) -> Drafts:
        published = published_for(run)
        own = (self.threshold, self.decay, self.floor, self.unverified)
        threshold, decay, floor, unverified = (
            default if value is None else value for value, default in zip(own, published, strict=False)
        )
        return Drafts(threshold, decay, floor, int(unverified))

    def warmup(self, run: RunFacts) -> int:
        return published_for(run).warmup

    def guards(self, run: RunFacts) -> Guards:
        guards = super().guards(run)
        cap = self.max_consecutive_reuses or published_for(run).cap
        return Guards(guards.warmup_steps, guards.tail_steps, cap)

    def predictor_for(self, run: RunFacts) -> Predictor:
        order = published_for(run).order if self.order is None else self.order
        return Taylor(order, first=self.guards(run).warmup_steps - 2)


def published_for(run: RunFacts) -> Published:
    """What is published for the run's denoiser."""
    return PUBLISHED.get(run.denoiser_class, GENERAL)
