"""Spectrum (arXiv 2603.01623): compute at growing distances, and forecast the last block by Chebyshev polynomials over the run."""

import math
from dataclasses import dataclass
from typing import ClassVar

from diffcache.config import CacheConfig, RunFacts
from diffcache.method_config import method
from diffcache.prediction.predictors import Chebyshev, Predictor
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.interval import Interval
from diffcache.schedulers.ticks import Ticks
from diffcache.store.streams import Basis

PUBLISHED_TICKS = 50
"""Where the length of a run is unknown."""


@method
@dataclass(frozen=True, kw_only=True)
class SpectrumConfig(CacheConfig):
    """Where: the stack, its output. When: at growing distances. How: a ridge regression on Chebyshev polynomials of the tick.

    The distance between computed ticks is `interval`, rounded down, and grows by `growth` with each of them. All features of the
    run are kept, 14 in 50 ticks. The polynomials cover 50 ticks in the published code, and here the run. Where its length is
    unknown, distances stay as they are.

    Attributes:
        interval: N of the paper, the first distance in ticks; 1, without growth, computes everything.
        growth: alpha of the paper, in ticks. 0.75 computes 14 of 50 ticks, 3 computes 10.
        degree: M, of the highest polynomial.
        ridge: lambda.
        mixture: share of the regression; the rest goes to a line through the two newest features. 1 is the paper's; the authors
            recommend 0.5 to 1.
        warmup_steps: None: 5, as published.
        tail_steps: 0, as published.
    """

    name: ClassVar[str] = "spectrum"

    interval: float = 2.0
    growth: float = 0.75
    degree: int = 4
    ridge: float = 0.1
    mixture: float = 0.5
    tail_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("interval", 1)
        self._check("growth", 0)
        self._check("degree", 1, whole=True)
        self._check("ridge", 0)
        self._check("mixture", 0)

    def sites(self, run: RunFacts) -> tuple[str, ...]:
        return ("stack",)

    @property
    def stored_basis(self) -> Basis:
        return "output"

    def warmup(self, run: RunFacts) -> int:
        return 5

    def ticks(self, run: RunFacts, length: int) -> list[int]:
        """The computed ticks of a run of this length."""
        ticks = list(range(min(max(self.guards(run).warmup_steps, 1), length)))
        distance = self.interval
        while ticks[-1] + math.floor(distance) < length:
            ticks.append(ticks[-1] + math.floor(distance))
            distance += self.growth
        return ticks

    def scheduler(self, run: RunFacts) -> CacheScheduler:
        if run.num_ticks is None:
            return Interval(math.floor(self.interval))
        return Ticks(self.ticks(run, run.num_ticks))

    def predictor_for(self, run: RunFacts) -> Predictor:
        length = run.num_ticks or PUBLISHED_TICKS
        return Chebyshev(len(self.ticks(run, length)), length, self.degree, self.ridge, self.mixture)
