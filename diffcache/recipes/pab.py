"""PAB, Pyramid Attention Broadcast (arXiv 2408.12588): reuse attention, the longer the steadier its kind is."""

from dataclasses import dataclass
from typing import ClassVar

from diffcache.config import CacheConfig, RunFacts
from diffcache.method_config import method
from diffcache.schedulers.by_site import BySite
from diffcache.schedulers.interval import Interval, Window
from diffcache.schedulers.steps import Step


@method
@dataclass(frozen=True, kw_only=True)
class PABConfig(CacheConfig):
    """Where: every attention, its output, for each guidance pass by itself. When: an interval by kind. How: hold.

    Reuse happens inside a window of training time only. The authors also reuse feed-forwards of Open-Sora and Latte.

    Attributes:
        interval: of self- and joint attention; 1 computes all.
        temporal_interval: of attention whose path says "temporal".
        cross_interval: of cross-attention.
        window: of training time, as a fraction; Diffusers' 100 to 800 of 1000.
        warmup_steps: None: 1.
        tail_steps: 0, as published: the window ends before.
    """

    name: ClassVar[str] = "pab"

    interval: int = 2
    temporal_interval: int = 4
    cross_interval: int = 6
    window: Window = (0.1, 0.8)
    tail_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("interval", "temporal_interval", "cross_interval"):
            self._check(option, 1, whole=True)
        self._check_window("window")

    def sites(self, run: RunFacts) -> tuple[str, ...]:
        return ("attention",)

    def scheduler(self, run: RunFacts) -> BySite:
        spatial, temporal, cross = (
            Interval(interval, window=self.window)
            for interval in (self.interval, self.temporal_interval, self.cross_interval)
        )

        def of(step: Step) -> Interval:
            if step.kind == "cross-attention":
                return cross
            return temporal if "temporal" in step.site else spatial

        return BySite(of)

    def warmup(self, run: RunFacts) -> int:
        return 1
