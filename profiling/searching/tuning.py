"""tune: finds how little may be computed for a quality, or how to place what a speed-up leaves, on the user's prompts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from diffcache.config import CacheConfig, RunFacts
from diffcache.profiling.recording.calling import Call, calls_hash, frozen
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.recipes.budget import BudgetConfig, allowed, spread
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.allowance import Appointed
from diffcache.schedulers.error_control import ErrorControl
from diffcache.schedulers.errors import ConfigError, TargetError
from diffcache.schedulers.schedule import ALL, Schedule
from diffcache.schedulers.search.local import Ticks, local_search
from diffcache.schedulers.steps import Decision

CLOSE = 1.0
"""So far above the quality that was asked for, in dB, nothing more is left out."""

THINNED = 6
"""So many guidance passes are tried to be left out for it."""

MOVES = 12
"""So many placings with one tick less,"""

TRIALS = 32
"""and so many for a speed-up."""

SKEWS = (1.0, 0.8, 0.65)
"""Placings that a search starts from: even ones, and ones ever denser towards the end (powers of the share of ticks)."""


@dataclass(frozen=True, kw_only=True)
class PlacedConfig(BudgetConfig):
    """Computes these ticks, and chooses by what to reuse the others as error control does."""

    ticks: tuple[int, ...] = (0,)
    tail_steps: int = 0

    def scheduler(self, run: RunFacts) -> ErrorControl:
        return Appointed(self.ticks, self.order, self.axis)

    def warmup(self, run: RunFacts) -> int:
        return 1


def tune(
    pipe: Any,
    prompts: Sequence[str | Call],
    *,
    quality: float | None = None,
    speedup: float | None = None,
    **call: Any,
) -> Schedule:
    """Finds a schedule on some prompts and verifies it on others.

    Every second prompt is kept apart: the other half says where ticks are best computed, and this one whether that is enough. For a
    quality, the search begins with the fewest ticks at which `speedup=` keeps it, and goes on with one tick less as long as
    single ticks can be moved so that it is kept. Single guidance passes are left out in the end, where a decibel is left over.
    For a speed-up, a local search begins with the ticks that `speedup=` chooses and with regular ones, and moves single ticks;
    what it finds is taken if it is better than these on the half that is kept apart too.

    Args:
        pipe: a pipeline; it is plain afterwards.
        prompts: at least two: texts, or whole calls as keyword arguments (for pipelines without a prompt).
        quality: median PSNR in dB to the full run that must be kept on the half that is kept apart.
        speedup: or ticks of a run over computed ticks.
        **call: what every call is given besides (`num_inference_steps`, `height`, ...). Prompt i is drawn with seed i.

    Returns:
        A schedule; `measured` holds its compute fraction and the PSNR on both halves.

    Raises:
        ConfigError: not exactly one aim, fewer than two prompts, a speed-up below 1, or a quality that no reuse keeps.
        TargetError: a denoiser without its pipeline.
    """
    if (quality is None) == (speedup is None) or isinstance(prompts, str) or len(prompts) < 2:
        raise ConfigError("tune() needs a list of at least two prompts, and either quality= or speedup=.")
    if isinstance(pipe, torch.nn.Module):
        raise TargetError("tune() renders pictures: give it the pipeline, or a Loop around the denoiser.")
    if quality is not None and not isinstance(quality, (int, float)):
        raise ConfigError(f"quality={quality!r}: give a PSNR in dB, such as 35.0.")
    if speedup is not None:
        BudgetConfig(speedup=speedup)  # refused before anything is rendered
    tuner = Tuner(pipe, [_call(prompt, seed, call) for seed, prompt in enumerate(prompts)])
    if speedup is not None:
        return tuner.for_speedup(speedup)
    assert quality is not None
    return tuner.for_quality(quality)


class Tuner:
    """Aims at one pipeline and its prompts; what has been rendered for one aim is known to the next.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: every second one is kept apart.
    """

    def __init__(self, pipe: Any, calls: Sequence[Call]) -> None:
        self.calls = calls
        self.seen, self.apart = FullRuns(pipe, calls[::2]), FullRuns(pipe, calls[1::2])
        self.full = frozen(pipe, calls[0], BudgetConfig(speedup=1))
        self.ticks = self.full.num_ticks
        self._decided: dict[CacheConfig, tuple[Schedule, Tensor]] = {}
        self._reached: dict[tuple[bool, str], float] = {}

    def for_speedup(self, speedup: float) -> Schedule:
        """The best placing of as many ticks as a speed-up allows, on the half that the search has not seen."""
        count = allowed(self.ticks, speedup)
        online = self.online(count)
        starts = [computed_ticks(online), *(spread(self.ticks, count, 1, skew) for skew in SKEWS)]
        found = local_search(starts, self.ticks, self._loss, TRIALS)
        regular = max(count - len(self.full.models) + 1, 1)  # each further denoiser computes its first call
        placings = [online, self._placed(found.ticks), *(self.even(regular, order) for order in (1, 2, 0))]
        best = max(placings, key=lambda placing: self.psnr(placing, apart=True))
        return self._measured(best, {"speedup": speedup})

    def for_quality(self, quality: float) -> Schedule:
        """The fewest ticks that keep a quality on the half that is kept apart.

        Raises:
            ConfigError: no reuse keeps it.
        """
        low, high = 1, self.ticks
        while low < high:
            middle = (low + high) // 2
            kept = self.keeps(self.online(middle), quality)
            low, high = (low, middle) if kept else (middle + 1, high)
        if low == self.ticks:
            raise ConfigError(f"no reuse keeps {quality} dB here: run the pipeline as it is.")
        found = self.online(low)
        while (fewer := self._with_one_less(found, quality)) is not None:
            found = fewer
        return self._measured(self._thinned(found, quality), {"quality": quality})

    def online(self, count: int) -> Schedule:
        """So many ticks, where `speedup=` computes them."""
        return self._decide(BudgetConfig(speedup=self.ticks / count))[0]

    def psnr(self, schedule: Schedule, *, apart: bool = False) -> float:
        """Median over the prompts of one half, in dB."""
        key = apart, f"{schedule.table} {schedule.predictor}"
        if key not in self._reached:
            runs = self.apart if apart else self.seen
            self._reached[key] = runs.psnr(ReplayConfig(schedule=schedule))
        return self._reached[key]

    def even(self, count: int, order: int) -> Schedule:
        """So many ticks, evenly spread, extrapolated with this order."""
        return evenly(self.full, count, order)

    def keeps(self, schedule: Schedule, quality: float) -> bool:
        """On the half that is kept apart."""
        return self.psnr(schedule, apart=True) >= quality

    def _with_one_less(self, schedule: Schedule, quality: float) -> Schedule | None:
        """A placing of one tick less that keeps a quality; None where the search comes upon none."""
        ticks = computed_ticks(schedule)
        if len(ticks) < 3:
            return None
        crowded = _by_crowding(ticks)[0]
        starts = [computed_ticks(self.online(len(ticks) - 1)), [tick for tick in ticks if tick != crowded]]
        found = local_search(
            starts, self.ticks, self._loss, MOVES, lambda tried: self.keeps(self._placed(tried), quality)
        )
        placed = self._placed(found.ticks)
        fewer = len(computed_ticks(placed)) < len(ticks)
        return placed if fewer and self.keeps(placed, quality) else None

    def _thinned(self, schedule: Schedule, quality: float) -> Schedule:
        """Without the last guidance pass of ticks that the quality does not need."""
        for tick in _by_crowding(computed_ticks(schedule))[:THINNED]:
            if self.keeps(schedule, quality + CLOSE):
                thinner = _without_last_pass(schedule, tick)
                schedule = thinner if self.keeps(thinner, quality) else schedule
        return schedule

    def _loss(self, ticks: Ticks) -> float:
        """Of a placing: the mean over samples, which a few lucky ones move less than the median.

        Infinite where more must be computed than was placed: a second denoiser's first call.
        """
        schedule, psnrs = self._decide(PlacedConfig(ticks=ticks))
        return -float(psnrs.mean()) if len(computed_ticks(schedule)) <= len(ticks) else math.inf

    def _placed(self, ticks: Ticks) -> Schedule:
        return self._decide(PlacedConfig(ticks=ticks))[0]

    def _decide(self, config: CacheConfig) -> tuple[Schedule, Tensor]:
        """What a method decides on the first half, and the PSNR of each sample there, in dB."""
        if config not in self._decided:
            self._decided[config] = self.seen.decided(config)
        return self._decided[config]

    def _measured(self, schedule: Schedule, aim: dict[str, float]) -> Schedule:
        """A candidate with what it costs and gives."""
        run = frozen(self.seen.pipe, self.calls[0], ReplayConfig(schedule=schedule))
        measured = {
            "compute_fraction": run.measured["compute_fraction"],
            "psnr": round(self.psnr(schedule), 2),
            "psnr_held_out": round(self.psnr(schedule, apart=True), 2),
        }
        producer = {"method": "tune", **aim, "prompts": calls_hash(self.calls)}
        return replace(schedule, measured=measured, producer=producer)


def evenly(full: Schedule, count: int, order: int) -> Schedule:
    """A full run's schedule with so many ticks, evenly spread, extrapolated with this order, and hindsight."""
    computed = set(spread(full.num_ticks, count, 1))
    marks = "".join("#" if tick in computed else "-" for tick in range(full.num_ticks))
    predictor = {
        "name": "polynomial", "order": order, "axis": "sigma", "basis": "output", "hindsight": True,
    }  # fmt: skip
    return replace(full, table={site: {ALL: marks} for site in full.models}, predictor=predictor)


def computed_ticks(schedule: Schedule) -> list[int]:
    """Those at which something is computed."""
    ticks: list[int] = schedule.decisions.flatten(1).any(1).nonzero().flatten().tolist()
    return ticks


def _by_crowding(computed: Sequence[int]) -> list[int]:
    """The computed ticks between the first and the last, those with the nearest neighbours first."""
    gaps = {
        tick: after - before
        for before, tick, after in zip(computed, computed[1:], computed[2:], strict=False)
    }
    return sorted(gaps, key=gaps.__getitem__)


def _without_last_pass(schedule: Schedule, tick: int) -> Schedule:
    """The same with a straight line at this tick in the last guidance pass, if it is computed."""

    def marks(row: str) -> str:
        computes = row[tick] == Decision.COMPUTE.value
        return row[:tick] + Decision.LINE.value + row[tick + 1 :] if computes else row

    last = schedule.branches[-1]
    table = {site: {**rows, last: marks(rows[last])} for site, rows in schedule.table.items()}
    return replace(schedule, table=table)


def _call(prompt: str | Call, seed: int, call: Call) -> Call:
    given = {"prompt": prompt} if isinstance(prompt, str) else prompt
    return {"generator": torch.Generator().manual_seed(seed), **call, **given}
