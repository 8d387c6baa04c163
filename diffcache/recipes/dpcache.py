"""DPCache (arXiv 2602.22654): compute the ticks of the cheapest path through the run, and forecast the stack between them."""

from dataclasses import dataclass
from typing import ClassVar

from diffcache.config import CacheConfig, RunFacts
from diffcache.method_config import method
from diffcache.prediction.predictors import Predictor, Taylor
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.interval import Interval
from diffcache.schedulers.ticks import Ticks
from diffcache.store.streams import Basis


@method
@dataclass(frozen=True, kw_only=True)
class DPCacheConfig(CacheConfig):
    """Where: the stack, its output. When: at the ticks of a calibrated path. How: a Taylor expansion in ticks.

    `tune(pipe, prompts, speedup=4, engine="dpcache")` calibrates the path on full runs (`diffcache.profiling.calibrating.dpcache`).

    Attributes:
        ticks: which are computed, by rising number, in runs as long as the calibrated ones. None: not calibrated, a fixed interval.
        interval: of that, counted from the last warm-up tick; 1 computes everything.
        order: of the expansion, 2 as published.
        warmup_steps: None: 3, as published.
        tail_steps: 0, as published.
    """

    name: ClassVar[str] = "dpcache"

    ticks: tuple[int, ...] | None = None
    interval: int = 4
    order: int = 2
    tail_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_ticks("ticks")
        self._check("interval", 1, whole=True)
        self._check("order", 1, whole=True)

    def sites(self, run: RunFacts) -> tuple[str, ...]:
        return ("stack",)

    @property
    def stored_basis(self) -> Basis:
        return "output"

    def warmup(self, run: RunFacts) -> int:
        return 3

    def scheduler(self, run: RunFacts) -> CacheScheduler:
        if self.ticks is not None:
            return Ticks(self.ticks)
        return Interval(self.interval, first=max(self.guards(run).warmup_steps - 1, 0))

    def predictor_for(self, run: RunFacts) -> Predictor:
        return Taylor(self.order, first=self.guards(run).warmup_steps - 2)
