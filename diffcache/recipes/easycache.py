"""EasyCache (arXiv 2507.02860): reuse the whole denoiser while the expected change of its output stays small."""

from dataclasses import dataclass
from typing import ClassVar

from diffcache.config import CacheConfig, RunFacts
from diffcache.method_config import method
from diffcache.schedulers.accumulator import Accumulator
from diffcache.schedulers.signals import SecantGain

PUBLISHED = {
    ("WanTransformer3DModel", 1): (0.05, 10),
    ("WanTransformer3DModel", 2): (0.06, 7),
    ("HunyuanVideoTransformer3DModel", 1): (0.025, 5),
}
"""(denoiser, experts) -> (threshold, warm-up in ticks), from the authors' scripts."""

GENERAL = (0.05, 10)
PUBLISHED_TICKS = 50


@method
@dataclass(frozen=True, kw_only=True)
class EasyCacheConfig(CacheConfig):
    """Where: the whole denoiser. When: an accumulator. How: hold the residual v - x.

    E grows at each tick by k * mean|x_s - x_{s-1}| / mean|v_c|, the change of the output that the last secant k
    predicts; the tick is reused while E < threshold. Warm-up and last tick are computed.

    Attributes:
        threshold: bound on E as a fraction of the output (0.05 is 5 %); 0 computes everything. None: as published
            for the denoiser (0.05 for Wan 2.1, 0.06 for Wan 2.2, 0.025 for HunyuanVideo), 0.05 elsewhere.
        warmup_steps: used as it is. None: as published (10, 7, 5 ticks; 10 elsewhere), scaled down in proportion
            for runs shorter than 50 ticks.
        per_sample: decide for each sample of a batch by itself and compute only those that need it, so that no
            image depends on its neighbours in the batch.
    """

    name: ClassVar[str] = "easycache"

    threshold: float | None = None
    per_sample: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("threshold", 0)
        self._choose("per_sample", True, False)

    def scheduler(self, run: RunFacts) -> Accumulator:
        published, _ = PUBLISHED.get((run.denoiser_class, run.experts), GENERAL)
        return Accumulator(SecantGain(), published if self.threshold is None else self.threshold)

    def warmup(self, run: RunFacts) -> int:
        _, ticks = PUBLISHED.get((run.denoiser_class, run.experts), GENERAL)
        share = 1.0 if run.num_ticks is None else min(run.num_ticks / PUBLISHED_TICKS, 1.0)
        return round(ticks * share)
