"""ERTACache (arXiv 2508.21091): an offline schedule, respaced noise levels, and an affine repair of what is reused."""

from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import ClassVar

from diffcache.config import CacheConfig, RunFacts
from diffcache.method_config import method
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.interval import Interval
from diffcache.schedulers.schedule import Schedule

EVEN = 2
"""Interval of the schedule that is not calibrated."""


@method
@dataclass(frozen=True, kw_only=True)
class ERTACacheConfig(CacheConfig):
    """Where: the whole denoiser. When: a calibrated schedule. How: hold the residual v - x, corrected as calibrated.

    The calibration chooses among an affine map of each channel, shorter steps where reuse is far off, and hindsight.

    Attributes:
        calibration: folder or hub id of a schedule that scripts/calibrate.py has made (`diffcache.profiling.calibrating.ertacache`).
            None: not calibrated: an even schedule without corrections.
        rectify: apply the affine maps.
        respace: run at the respaced noise levels.
        hindsight: None: as calibrated.
        interval: of the even schedule, where there is no calibration; 1 computes everything, whatever was calibrated.
        warmup_steps, tail_steps: None: 1, or as calibrated.
    """

    name: ClassVar[str] = "ertacache"

    calibration: str | Path | None = None
    rectify: bool = True
    respace: bool = True
    interval: int = EVEN

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("interval", 1, whole=True)
        if isinstance(self.calibration, Path):
            object.__setattr__(self, "calibration", str(self.calibration))
        if not isinstance(self.calibration, (str, NoneType)):
            raise ConfigError(
                f"ertacache: calibration must be the folder or hub id of a schedule, not {self.calibration!r}."
            )
        if self.calibration is not None and self.interval not in (1, EVEN):
            raise ConfigError(
                f"ertacache: interval={self.interval} is for an even schedule, and a calibration has its own ticks: leave one of them out."
            )
        self._choose("rectify", True, False)
        self._choose("respace", True, False)

    @property
    def own_hindsight(self) -> None:
        return None

    def resolved(self) -> CacheConfig:
        if self.calibration is None or self.interval == 1:
            return self
        schedule = Schedule.from_pretrained(self.calibration)
        return ReplayConfig(
            schedule=schedule,
            rectify=self.rectify,
            respace=self.respace,
            hindsight=self.hindsight,
            cache_dtype=self.cache_dtype,
            cache_device=self.cache_device,
            warmup_steps=self.warmup_steps,
            tail_steps=self.tail_steps,
            max_consecutive_reuses=self.max_consecutive_reuses,
        )

    def scheduler(self, run: RunFacts) -> Interval:
        return Interval(self.interval)

    def warmup(self, run: RunFacts) -> int:
        return 1
