"""ProfilingDiT (arXiv 2504.03140): reuse what the blocks that draw the background add, at shrinking intervals."""

from dataclasses import dataclass
from typing import ClassVar

from diffcache.config import CacheConfig, RunFacts
from diffcache.discovery.site_names import ranges_of
from diffcache.method_config import method
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.by_site import BySite
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.interval import Interval
from diffcache.schedulers.steps import Step
from diffcache.schedulers.ticks import Ticks

HUNYUAN_SINGLE = (0, 2, *range(4, 8), *range(10, 22), 23, 25, 26, 27, 31, 33)
WAN = (0, *range(2, 8), *range(10, 21), *range(25, 33), 37, 38)

PUBLISHED = {
    ("HunyuanVideoTransformer3DModel", "transformer_blocks", 20): tuple(range(6, 20)),
    ("HunyuanVideoTransformer3DModel", "single_transformer_blocks", 40): HUNYUAN_SINGLE,
    ("WanTransformer3DModel", "blocks", 40): WAN,
}
"""(denoiser, list, its length) -> background blocks, from the authors' scripts (HunyuanVideo, Wan 2.1 14B)."""

SHRINKING = (6, 18, 26, 32, 38, 42, 46, 48)
"""HunyuanVideo's refreshes, of 50 ticks."""

GENERAL = "stack[1..]"


@method
@dataclass(frozen=True, kw_only=True)
class ProfilingDiTConfig(CacheConfig):
    """Where: runs of background blocks, as one residual each. When: static, after a warm-up. How: hold.

    Attributes:
        blocks: sites to cache ("blocks.2..blocks.7"). None: as published for HunyuanVideo and Wan 2.1 14B; elsewhere all
            blocks but the first.
        interval: refreshes every so many ticks after the warm-up; 1 computes everything. None: as published (HunyuanVideo's
            single blocks at shrinking intervals, 6 elsewhere).
        shrink_to: the interval shrinks to this by the end of the run (the paper's T_s = T_max - (T_max - T_min)(s - s_0) /
            (S - s_0), rounded, as the distance from s to the next refresh). None: it stays.
        warmup_steps: None: 6 of 50 ticks, in proportion for shorter runs.
        tail_steps: 0, as published.
    """

    name: ClassVar[str] = "profilingdit"

    blocks: tuple[str, ...] | None = None
    interval: int | None = None
    shrink_to: int | None = None
    tail_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("interval", 1, whole=True)
        self._check("shrink_to", 1, whole=True)
        named = isinstance(self.blocks, (list, tuple)) and all(isinstance(site, str) for site in self.blocks)
        if self.blocks is not None and not (named and self.blocks):
            raise ConfigError(f"profilingdit: blocks must be a tuple of sites' names, not {self.blocks!r}.")
        if self.shrink_to is not None and (self.interval or 6) < self.shrink_to:
            raise ConfigError(f"profilingdit: shrink_to must be at most interval, not {self.shrink_to!r}.")

    def sites(self, run: RunFacts) -> tuple[str, ...]:
        if self.blocks is not None:
            return tuple(self.blocks)
        known = {
            name: PUBLISHED.get((run.denoiser_class, name, count), ()) for name, count in run.blocks.items()
        }
        return tuple(site for name, members in known.items() for site in ranges_of(name, members)) or (
            GENERAL,
        )

    def scheduler(self, run: RunFacts) -> CacheScheduler:
        begin = self.guards(run).warmup_steps
        if self.shrink_to is not None:
            return Ticks(shrinking(begin, run.num_ticks or 50, self.interval or 6, self.shrink_to))
        uniform = Interval(self.interval or 6, first=begin)
        if self.interval is not None or run.denoiser_class != "HunyuanVideoTransformer3DModel":
            return uniform
        ticks = (run.num_ticks or 50) / 50
        published = Ticks(round(tick * ticks) for tick in SHRINKING)

        def of(step: Step) -> CacheScheduler:
            return published if step.site.startswith("single_") else uniform

        return BySite(of)

    def warmup(self, run: RunFacts) -> int:
        return round(6 * min((run.num_ticks or 50) / 50, 1))


def shrinking(begin: int, num_ticks: int, longest: int, shortest: int) -> list[int]:
    """Refreshes from `begin` on, at intervals that shrink linearly over the run."""
    found, tick = [], begin
    while tick < num_ticks:
        found.append(tick)
        tick += round(longest - (longest - shortest) * (tick - begin) / (num_ticks - begin))
    return found
