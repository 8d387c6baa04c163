"""T-GATE (arXiv 2404.02747): cross-attention says what to draw early on; after the gate it is reused."""

from dataclasses import dataclass
from typing import ClassVar

from diffcache.config import CacheConfig, RunFacts
from diffcache.method_config import method
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.by_site import BySite
from diffcache.schedulers.errors import ConfigError
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
            The authors' gate is tick 10 of 25 for SDXL, and 15 of 25 for PixArt.
        interval: of self-attention before the gate: it is computed in the warm-up and right after it, at every `interval`-th tick of the
            run, and from the last tick before the gate on; 1 computes it at every tick. The authors take 5 for SDXL, and 3 for PixArt.
        warmup_steps: None: 2.
        tail_steps: 0, as published.

    Where the length of the run is unknown, everything is computed.
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
        if run.num_ticks is None:
            return BySite(lambda step: None)
        gate, warmup = round(self.gate * run.num_ticks), self.guards(run).warmup_steps
        of_cross = Ticks(range(gate))
        from_gate = range(max(gate - 1, 0), run.num_ticks)
        of_self = Ticks({*range(warmup + 1), *range(0, gate, self.interval), *from_gate})

        def of(step: Step) -> CacheScheduler:
            return of_cross if step.kind == "cross-attention" else of_self

        return BySite(of)

    def warmup(self, run: RunFacts) -> int:
        return 2
