"""DeepCache (arXiv 2312.00858): run a UNet's outer layers, and reuse what comes from below."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from diffcache.config import CacheConfig, RunFacts
from diffcache.discovery.units import is_flat
from diffcache.method_config import method
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.errors import TargetError
from diffcache.schedulers.interval import Interval
from diffcache.schedulers.ticks import Ticks


@method
@dataclass(frozen=True, kw_only=True)
class DeepCacheConfig(CacheConfig):
    """Where: a UNet below some depth, its output. When: a fixed interval, or one that is short around a tick. How: hold.

    Attributes:
        interval: mean distance between computed ticks; 1 computes everything.
        depth: how many of the outermost layers always run; 1 reuses most. The reference's `cache_branch_id` plus one.
        spacing: "uniform", or "power": denser around `center`.
        center: tick around which computed ticks are densest.
        power: how much denser.
        warmup_steps: None: 1.
        tail_steps: 0, as published.
    """

    name: ClassVar[str] = "deepcache"

    interval: int = 3
    depth: int = 1
    spacing: Literal["uniform", "power"] = "uniform"
    center: int = 15
    power: float = 1.4
    tail_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("interval", "depth"):
            self._check(option, 1, whole=True)
        self._check("center", 0, whole=True)
        self._check("power", 1)
        self._choose("spacing", "uniform", "power")

    def check(self, denoisers: Mapping[str, nn.Module]) -> None:
        flat = [name for name, module in denoisers.items() if is_flat(module)]
        if not flat:
            return
        others = tuple(name for name in denoisers if name not in flat)
        instead = (
            f"cache the others alone: components={others!r}"
            if others
            else 'choose another method, or uniform with site="depth 1" if skip connections join its blocks'
        )
        raise TargetError(
            f"{type(denoisers[flat[0]]).__name__} cannot be cached at 'depth {self.depth}': deepcache is for UNets, whose blocks "
            f"differ; {instead}."
        )

    def sites(self, run: RunFacts) -> tuple[str, ...]:
        return (f"depth {self.depth}",)

    def scheduler(self, run: RunFacts) -> CacheScheduler:
        if self.spacing == "uniform" or run.num_ticks is None:
            return Interval(self.interval)
        return Ticks(power_spaced(run.num_ticks, self.interval, self.center, self.power))

    def warmup(self, run: RunFacts) -> int:
        return 1


def power_spaced(num_ticks: int, interval: int, center: int, power: float) -> list[int]:
    """ceil(num_ticks / interval) ticks, densest around `center`, as the authors' script gives them.

    The ramp between (-center)^(1/power), a complex number, and (num_ticks - center)^(1/power) is raised to `power`, and
    its real part cut off; `power` is lowered until that gives enough distinct ticks.
    """
    count = math.ceil(num_ticks / interval)
    while power > 1:
        begin, end = complex(-center) ** (1 / power), complex(num_ticks - center) ** (1 / power)
        ramp = [begin + (end - begin) * i / count for i in range(count + 1)]
        ticks = sorted({center + int((z**power).real) for z in ramp})[1:-1]
        ticks = sorted({0, *(tick for tick in ticks if 0 < tick < num_ticks)})
        if len(ticks) == count:
            return ticks
        power -= 0.02
    return list(range(0, num_ticks, interval))
