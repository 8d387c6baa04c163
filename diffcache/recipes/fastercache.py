"""FasterCache (arXiv 2410.19355): extrapolate attention, and rebuild the unconditional pass from the conditional one."""

from dataclasses import dataclass
from typing import ClassVar

from diffcache.config import Boost, CacheConfig, GuidanceRule, RunFacts
from diffcache.method_config import method
from diffcache.prediction.predictors import Lerp, Predictor
from diffcache.schedulers.interval import Interval, Window


@method
@dataclass(frozen=True, kw_only=True)
class FasterCacheConfig(CacheConfig):
    """Where: every attention, its output, and the unconditional pass. When: fixed intervals inside a window. How: F +
    weight * (F - the F before it); conditional output + the last difference, by frequency.

    A batch of both passes is taken apart into two calls. Where the pipeline makes two calls, the conditional one must
    come first; else nothing is rebuilt and the report says so.

    Attributes:
        interval: of attention; 1 computes all.
        weight: of the last change of attention. The authors let it grow over the run.
        guidance_interval: of the unconditional pass; 1 computes all.
        window, guidance_window: of training time, as fractions, in which they are reused.
        low_boost, high_boost: growth of the low and the high frequencies of the difference at every reuse, for
            training times in 0.1 to 0.9 and below 0.3.
        warmup_steps: None: 1.
        tail_steps: 0, as published. The defaults are those of Diffusers.
    """

    name: ClassVar[str] = "fastercache"

    interval: int = 2
    weight: float = 0.5
    guidance_interval: int = 5
    window: Window = (-1.0, 0.681)
    guidance_window: Window = (-1.0, 0.641)
    low_boost: float = 1.1
    high_boost: float = 1.1
    tail_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("interval", "guidance_interval"):
            self._check(option, 1, whole=True)
        for option in ("weight", "low_boost", "high_boost"):
            self._check(option, 0)
        for option in ("window", "guidance_window"):
            self._check_window(option)

    def sites(self, run: RunFacts) -> tuple[str, ...]:
        return ("attention",)

    def scheduler(self, run: RunFacts) -> Interval:
        return Interval(self.interval, window=self.window)

    def warmup(self, run: RunFacts) -> int:
        return 1

    def predictor_for(self, run: RunFacts) -> Predictor:
        return Lerp(self.weight)

    def guidance(self, run: RunFacts) -> GuidanceRule | None:
        if self.guidance_interval == 1:
            return None
        scheduler = Interval(self.guidance_interval, window=self.guidance_window)
        return GuidanceRule(
            scheduler, Boost(self.low_boost, (0.099, 0.901)), Boost(self.high_boost, (-1.0, 0.301))
        )
