"""tune: searches the ticks to compute on the user's prompts, for a quality or for a speed-up."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from diffcache.config import CacheConfig, RunFacts
from diffcache.profiling.recording.calling import Call, calls_hash, calls_of, frozen, hold_out
from diffcache.profiling.recording.covariance import covariance_of
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.recipes.budgeted import allowed
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.schedulers.errors import ConfigError, TargetError
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.search.local import TickList, local_search
from diffcache.schedulers.steps import Decision
from diffcache.schedulers.ticks import Ticks, spread

MARGIN = 1.0
"""How far the PSNR may lie above the target, in dB, before guidance passes are left out. Our choice."""

PASSES = 6
"""How many guidance passes are tried to be left out. Our choice; each try renders the held-out calls."""

MOVES = 12
"""Trials of the local search that looks for ticks with one tick less. Our choice."""

TRIALS = 32
"""Trials of the local search for a speed-up. Our choice."""

RENDERS = 4
"""Full runs on which the covariance is measured, at most. Our choice."""

OWN = ((2.0, 0.5), (4.0, 0.5), (8.0, 0.5), (4.0, 0.0))
"""Response and evenness (see `TrajectoryConfig`) of plans with a pipeline's own covariance. Denoisers differ in which is best."""

SKEWS = (1.0, 0.8, 0.65)
"""Skews (see `spread`) of the ticks that the search for a speed-up starts with: even, and denser towards the end. Our choice."""


@dataclass(frozen=True, kw_only=True)
class PlacedConfig(EvenConfig):
    """Computes given ticks, and goes straight on from them.

    Attributes:
        ticks: that are computed.
    """

    ticks: tuple[int, ...] = (0,)
    tail_steps: int = 0

    def scheduler(self, run: RunFacts) -> Ticks:
        return Ticks(self.ticks)


def tune(
    pipe: Any,
    prompts: Sequence[str | Call],
    *,
    quality: float | None = None,
    speedup: float | None = None,
    engine: Literal["trajectory", "search"] = "trajectory",
    **call: Any,
) -> Schedule:
    """Finds a schedule on some prompts, and checks it on others.

    Every second prompt is held out. The search works on the other prompts, and its result is checked on the held-out ones.

    For a quality, it starts with the fewest ticks at which `accelerate(speedup=)` keeps the quality. Then it computes one tick
    less, moves single ticks until the quality is kept again, and repeats this as long as it succeeds. If the PSNR is then more
    than a decibel above the target, single guidance passes are left out.

    For a speed-up, the covariance of the velocities is measured on full runs (`diffcache.recipes.trajectory`), and schedules are
    planned with it. They are rendered on the prompts that are searched on, beside evenly spaced ones, and the best is taken. The
    engine "search" moves single ticks of it then, for as long as a render shows that this helps; that takes ten times as long.

    Args:
        pipe: a pipeline; it is plain afterwards.
        prompts: at least two: texts, or whole calls as keyword arguments (for pipelines without a prompt).
        quality: the median PSNR in dB to the full run that must be kept on the held-out prompts.
        speedup: instead of a quality: all ticks over computed ticks.
        engine: for a speed-up: "trajectory" or "search".
        **call: what every call gets as well (`num_inference_steps`, `height`, ...). Prompt i is drawn with seed i.

    Returns:
        A schedule. `measured` has its compute fraction, and the PSNR on both halves of the prompts.

    Raises:
        ConfigError: neither or both of quality and speed-up are given, there are fewer than two prompts, the speed-up is below
            1, the quality is not above 0 and finite, no reuse keeps it, or there is no such engine.
        TargetError: the target is a denoiser without its pipeline.
    """
    if (quality is None) == (speedup is None) or isinstance(prompts, str) or len(prompts) < 2:
        raise ConfigError("tune() needs a list of at least two prompts, and either quality= or speedup=.")
    if isinstance(pipe, torch.nn.Module):
        raise TargetError("tune() renders pictures: give it the pipeline, or a Loop around the denoiser.")
    if quality is not None and not (isinstance(quality, (int, float)) and 0 < quality < math.inf):
        raise ConfigError(f"quality={quality!r}: give a PSNR in dB, such as 35.0.")
    if engine not in ("trajectory", "search"):
        raise ConfigError(f"tune: engine must be one of trajectory, search, not {engine!r}.")
    if speedup is not None:
        EvenConfig(speedup=speedup)  # raises before anything is rendered
    tuner = Tuner(pipe, calls_of(prompts, **call))
    if speedup is not None:
        return tuner.for_speedup(speedup, search=engine == "search")
    assert quality is not None
    return tuner.for_quality(quality)


class Tuner:
    """Finds schedules for several aims on one pipeline. Each search reuses what the earlier ones rendered.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: keyword arguments of each call, at least two; every second one is held out.

    Attributes:
        searched, held_out: full runs of both halves.
        full: a schedule that computes everything.
        ticks: length of a run.
    """

    def __init__(self, pipe: Any, calls: Sequence[Call]) -> None:
        self.calls = calls
        searched, held_out = hold_out(calls)
        self.searched, self.held_out = FullRuns(pipe, searched), FullRuns(pipe, held_out)
        self.full = frozen(pipe, calls[0], EvenConfig(speedup=1))
        self.ticks = self.full.num_ticks
        self._decided: dict[CacheConfig, Schedule] = {}
        self._reached: dict[tuple[bool, str], Tensor] = {}
        self._covariance: Any = None

    def for_speedup(self, speedup: float, *, search: bool = False) -> Schedule:
        """The best schedule with as many ticks as a speed-up allows, on the searched calls.

        Args:
            speedup: all ticks over computed ticks.
            search: single ticks are moved as well.
        """
        count = allowed(self.ticks, speedup)
        evens = (self.even(count, order) for order in (1, 2, 0))
        found = [self.online(count), *evens, *map(self._decide, self._own(self.ticks / count))]
        best = max(found, key=self.mean_psnr)
        if search:
            starts = [best.computed_ticks, *(spread(self.ticks, count, skew=skew) for skew in SKEWS)]
            moved = self._placed(local_search(starts, self.ticks, self._loss, TRIALS).ticks)
            best = max(best, moved, key=self.mean_psnr)
        return self._measured(best, {"speedup": speedup})

    def _own(self, speedup: float) -> Iterator[CacheConfig]:
        """Plans with the pipeline's own covariance, from bold to careful; none for several denoisers."""
        if self._covariance is None and len(self.full.models) == 1:
            searched = self.searched
            self._covariance = covariance_of(searched.pipe, searched.calls[:RENDERS]).matrix.tolist()
        if self._covariance is not None:
            for response, evenness in OWN:
                yield TrajectoryConfig(
                    speedup=speedup, covariance=self._covariance, response=response, evenness=evenness
                )

    def for_quality(self, quality: float) -> Schedule:
        """The fewest ticks that keep a quality on the held-out calls.

        Raises:
            ConfigError: no reuse keeps it.
        """
        counts = range(1, self.ticks)
        fewest = bisect_left(counts, True, key=lambda count: self.keeps(self.online(count), quality))
        if fewest == len(counts):
            raise ConfigError(f"no reuse keeps {quality} dB here: run the pipeline as it is.")
        found = self.online(counts[fewest])
        while (fewer := self._with_one_less(found, quality)) is not None:
            found = fewer
        return self._measured(self._thinned(found, quality), {"quality": quality})

    def online(self, count: int) -> Schedule:
        """The schedule that `accelerate(speedup=)` decides on with so many ticks."""
        return self._decide(TrajectoryConfig(speedup=self.ticks / count))

    def even(self, count: int, order: int) -> Schedule:
        """The schedule with `count` evenly spaced ticks, extrapolated with this order."""
        return self._decide(EvenConfig(speedup=self.ticks / count, order=order))

    def psnr(self, schedule: Schedule, *, held_out: bool = False) -> float:
        """Median PSNR over the calls of one half, in dB."""
        return float(self._psnrs(schedule, held_out).median())

    def mean_psnr(self, schedule: Schedule) -> float:
        """Over the searched calls, in dB: a plan that is bad for a few samples shows in the mean, and not in the median."""
        return float(self._psnrs(schedule, held_out=False).mean())

    def _psnrs(self, schedule: Schedule, held_out: bool) -> Tensor:
        """Of each sample of one half, in dB; a schedule is rendered once."""
        key = held_out, f"{schedule.table} {schedule.predictor}"
        if key not in self._reached:
            runs = self.held_out if held_out else self.searched
            self._reached[key] = runs.psnrs(ReplayConfig(schedule=schedule))
        return self._reached[key]

    def keeps(self, schedule: Schedule, quality: float) -> bool:
        """Whether a schedule keeps a quality on the held-out calls."""
        return self.psnr(schedule, held_out=True) >= quality

    def _with_one_less(self, schedule: Schedule, quality: float) -> Schedule | None:
        """A schedule with one tick less that keeps a quality; None if the search finds none."""
        ticks = schedule.computed_ticks
        if len(ticks) < 3:
            return None
        crowded = _by_crowding(ticks)[0]
        starts = [self.online(len(ticks) - 1).computed_ticks, [tick for tick in ticks if tick != crowded]]
        found = local_search(
            starts, self.ticks, self._loss, MOVES, lambda tried: self.keeps(self._placed(tried), quality)
        )
        placed = self._placed(found.ticks)
        fewer = len(placed.computed_ticks) < len(ticks)
        return placed if fewer and self.keeps(placed, quality) else None

    def _thinned(self, schedule: Schedule, quality: float) -> Schedule:
        """A schedule without the last guidance pass of ticks that do not need it, while it is well above the quality."""
        for tick in _by_crowding(schedule.computed_ticks)[:PASSES]:
            if self.keeps(schedule, quality + MARGIN):
                thinner = _without_last_pass(schedule, tick)
                schedule = thinner if self.keeps(thinner, quality) else schedule
        return schedule

    def _loss(self, ticks: TickList) -> float:
        """Minus the mean PSNR with these ticks; a few lucky samples move it less than the median.

        It is infinite if more must be computed than these ticks: the first call of a second denoiser.
        """
        schedule = self._placed(ticks)
        return -self.mean_psnr(schedule) if len(schedule.computed_ticks) <= len(ticks) else math.inf

    def _placed(self, ticks: TickList) -> Schedule:
        return self._decide(PlacedConfig(ticks=ticks))

    def _decide(self, config: CacheConfig) -> Schedule:
        """What a method decides on the searched half. A replay gives the same pictures, so it is not rendered again."""
        if config not in self._decided:
            schedule, psnrs = self.searched.decided(config)
            self._decided[config] = schedule
            self._reached[False, f"{schedule.table} {schedule.predictor}"] = psnrs
        return self._decided[config]

    def _measured(self, schedule: Schedule, aim: dict[str, float]) -> Schedule:
        """A schedule with its cost and its PSNR."""
        run = frozen(self.searched.pipe, self.calls[0], ReplayConfig(schedule=schedule))
        measured = {
            "compute_fraction": run.measured["compute_fraction"],
            "psnr": round(self.psnr(schedule), 2),
            "psnr_held_out": round(self.psnr(schedule, held_out=True), 2),
        }
        producer = {"method": "tune", **aim, "prompts": calls_hash(self.calls)}
        return replace(schedule, measured=measured, producer=producer)


def _by_crowding(computed: Sequence[int]) -> list[int]:
    """The computed ticks between the first and the last, by the distance of their neighbours from each other."""
    gaps = {
        tick: after - before
        for before, tick, after in zip(computed, computed[1:], computed[2:], strict=False)
    }
    return sorted(gaps, key=gaps.__getitem__)


def _without_last_pass(schedule: Schedule, tick: int) -> Schedule:
    """A schedule that predicts the last guidance pass of this tick by a straight line, if it computed it."""

    def marks(row: str) -> str:
        computes = row[tick] == Decision.COMPUTE.value
        return row[:tick] + Decision.LINE.value + row[tick + 1 :] if computes else row

    last = schedule.branches[-1]
    table = {site: {**rows, last: marks(rows[last])} for site, rows in schedule.table.items()}
    return replace(schedule, table=table)
