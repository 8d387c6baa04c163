"""FORA (arXiv 2407.01425): compute every so many ticks, and reuse every attention and feed-forward in between."""

from dataclasses import dataclass
from typing import ClassVar

from diffcache.config import CacheConfig, RunFacts
from diffcache.method_config import method
from diffcache.schedulers.interval import Interval


@method
@dataclass(frozen=True, kw_only=True)
class FORAConfig(CacheConfig):
    """Where: every attention and feed-forward. When: a fixed interval. How: hold.

    The authors' code counts from the end: beside tick 0 it computes the last tick, and those that are a multiple of the interval before
    it. In their runs, of 250 ticks with an interval of 3, that is the same.

    Attributes:
        interval: ticks 0, interval, 2 * interval, ... are computed; 1 computes everything.
        warmup_steps: None: 1.
        tail_steps: 0, as published.
    """

    name: ClassVar[str] = "fora"

    interval: int = 3
    tail_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("interval", 1, whole=True)

    def sites(self, run: RunFacts) -> tuple[str, ...]:
        return ("sub-layer",)

    def scheduler(self, run: RunFacts) -> Interval:
        return Interval(self.interval)

    def warmup(self, run: RunFacts) -> int:
        return 1
