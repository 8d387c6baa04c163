"""FBCache (first-block cache): run the first block; if what it adds has hardly changed, reuse what the others add."""

from dataclasses import dataclass
from typing import ClassVar

from diffcache.config import CacheConfig, RunFacts
from diffcache.discovery.taps import Tap
from diffcache.method_config import method
from diffcache.schedulers.accumulator import Accumulator
from diffcache.schedulers.signals import Drift


@method
@dataclass(frozen=True, kw_only=True)
class FBCacheConfig(CacheConfig):
    """Where: all blocks but the first, as one residual. When: a threshold. How: hold.

    The signal is mean|a - b| / mean|b|, where a is what the first block adds to its first stream now and b what it added at
    the last computed tick. Nothing is accumulated. Source: ParaAttention; Diffusers' FirstBlockCache.

    Attributes:
        threshold: the tick is reused while the signal stays below it; 0 computes everything.
        warmup_steps: None: 0, as published.
        tail_steps: 0, as published.
    """

    name: ClassVar[str] = "fbcache"

    threshold: float = 0.05
    tail_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("threshold", 0)

    def sites(self, run: RunFacts) -> tuple[str, ...]:
        return ("stack[1..]",)

    def tap(self, run: RunFacts) -> Tap:
        return Tap(of="change")

    def scheduler(self, run: RunFacts) -> Accumulator:
        return Accumulator(Drift("computed"), self.threshold, accumulate=False)

    def warmup(self, run: RunFacts) -> int:
        return 0
