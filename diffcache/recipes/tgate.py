"""T-GATE (arXiv 2404.02747): cross-attention says what to draw early on; after the gate it is reused."""

from dataclasses import dataclass
from typing import ClassVar

from diffcache.config import CacheConfig, RunFacts
from diffcache.method_config import method
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.by_site import BySite
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.interval import Interval
from diffcache.schedulers.steps import Step
from diffcache.schedulers.ticks import Ticks


@method
@dataclass(frozen=True, kw_only=True)
class TGATEConfig(CacheConfig):
    """Where: attention, its output. When: cross-attention until the gate, self-attention at an interval before it. How: hold.

    Cross-attention is kept for each guidance pass by itself. The published code keeps the mean of both passes, and drops
    guidance after the gate, which is the pipeline's to decide: set its guidance to end there.

    Attributes:
        gate: share of the run after which cross-attention is reused; 1 computes everything.
        interval: of self-attention before the gate, after the warm-up; 1 computes it at every tick.
        warmup_steps: None: 2.
        tail_steps: 0, as published.
    """

    name: ClassVar[str] = "tgate"

    gate: float = 0.4
    interval: int = 1
    tail_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("gate", 0)
        if self.gate > 1:
            raise ConfigError(f"tgate: gate must be a share of the run between 0 and 1, not {self.gate!r}.")
        self._check("interval", 1, whole=True)

    def sites(self, run: RunFacts) -> tuple[str, ...]:
        return ("cross-attention",) if self.interval == 1 else ("self-attention", "cross-attention")

    def scheduler(self, run: RunFacts) -> BySite:
        ticks = run.num_ticks or 1
        gate = round(self.gate * ticks)
        before = Interval(self.interval, first=max(self.guards(run).warmup_steps - 1, 0))

        def of(step: Step) -> CacheScheduler | None:
            if step.kind == "cross-attention":
                return Ticks(range(gate))
            return before if step.tick < gate else None

        return BySite(of)

    def warmup(self, run: RunFacts) -> int:
        return 2
