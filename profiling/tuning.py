"""tune: finds how little may be computed for a quality, or how to place what a speed-up leaves, on the user's prompts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from diffcache.config import RunFacts
from diffcache.profiling.calling import Call, calls_hash, frozen
from diffcache.profiling.full_runs import FullRuns
from diffcache.recipes.budget import BudgetConfig, allowed, spread
from diffcache.recipes.curvature import CurvatureConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.allowance import Appointed
from diffcache.schedulers.error_control import ErrorControl
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.schedule import ALL, Schedule
from diffcache.schedulers.search.local import local_search
from diffcache.schedulers.steps import Decision

THRESHOLDS = [0.5 * 0.86**i for i in range(48)]
"""Of error control, from few computed ticks to nearly all."""

CLOSE = 1.0
"""So far above the quality that was asked for, in dB, nothing more is left out."""

THINNED = 6
"""So many single ticks are tried to be left out for a quality."""

TRIALS = 32
"""And so many placings for a speed-up."""

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

    Every second prompt is kept apart. For a quality, the decisions of error control (`curvature`) at a threshold are frozen; the
    threshold is looked for on the one half, and its search ends when both halves keep the quality. Single ticks are then left
    out as long as they do. For a speed-up, a local search on the one half begins with the ticks that error control chooses and
    with regular ones, and moves single ticks.

    Args:
        pipe: a pipeline; it is plain afterwards.
        prompts: at least two: texts, or whole calls as keyword arguments (for pipelines without a prompt).
        quality: median PSNR in dB to the full run that must be kept on either half of the prompts.
        speedup: or ticks of a run over computed ticks.
        **call: what every call is given besides (`num_inference_steps`, `height`, ...). Prompt i is drawn with seed i.

    Returns:
        A schedule; `measured` holds its compute fraction and the PSNR on both halves.

    Raises:
        ConfigError: not exactly one aim, fewer than two prompts, or a quality that no reuse keeps.
    """
    if (quality is None) == (speedup is None) or len(prompts) < 2:
        raise ConfigError("tune() needs at least two prompts, and either quality= or speedup=.")
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
        self._bent: dict[float, Schedule] = {}
        self._reached: dict[tuple[bool, str], float] = {}

    def for_speedup(self, speedup: float) -> Schedule:
        """The best placing of as many ticks as a speed-up allows."""
        count = allowed(self.ticks, speedup)
        bent = frozen(self.seen.pipe, self.calls[0], BudgetConfig(speedup=speedup))
        starts = [computed_ticks(bent), *(spread(self.ticks, count, 1, skew) for skew in SKEWS)]
        found = local_search(starts, self.ticks, self._loss, TRIALS)
        placed = frozen(self.seen.pipe, self.calls[0], PlacedConfig(ticks=found.ticks))
        placings = [bent, placed, *(self.even(count, order) for order in (1, 2, 0))]
        return self._measured(max(placings, key=self.psnr), {"speedup": speedup})

    def _loss(self, ticks: Sequence[int]) -> float:
        """Of a placing: the mean over samples, which a few lucky ones move less than the median."""
        return -float(self.seen.psnrs(PlacedConfig(ticks=tuple(ticks))).mean())

    def for_quality(self, quality: float) -> Schedule:
        """The fewest ticks that keep a quality.

        Raises:
            ConfigError: no reuse keeps it.
        """
        low, high = 0, len(THRESHOLDS) - 1
        while low < high:
            middle = (low + high) // 2
            kept = self.psnr(self.bent(THRESHOLDS[middle])) >= quality
            low, high = (low, middle) if kept else (middle + 1, high)
        while low < len(THRESHOLDS) and not self.keeps(self.bent(THRESHOLDS[low]), quality):
            low += 1
        while low and self.keeps(self.bent(THRESHOLDS[low - 1]), quality):
            low -= 1
        found = self._thinned(self.full if low == len(THRESHOLDS) else self.bent(THRESHOLDS[low]), quality)
        if bool(found.decisions.all()):
            raise ConfigError(f"no reuse keeps {quality} dB here: run the pipeline as it is.")
        return self._measured(found, {"quality": quality})

    def psnr(self, schedule: Schedule, *, apart: bool = False) -> float:
        """Median over the prompts of one half, in dB."""
        key = apart, f"{schedule.table} {schedule.predictor}"
        if key not in self._reached:
            runs = self.apart if apart else self.seen
            self._reached[key] = runs.psnr(ReplayConfig(schedule=schedule))
        return self._reached[key]

    def bent(self, threshold: float) -> Schedule:
        """What error control decides at this threshold in the first call."""
        if threshold not in self._bent:
            self._bent[threshold] = frozen(
                self.seen.pipe, self.calls[0], CurvatureConfig(threshold=threshold)
            )
        return self._bent[threshold]

    def even(self, count: int, order: int) -> Schedule:
        """So many ticks, evenly spread, extrapolated with this order."""
        computed = set(spread(self.ticks, count, 1))
        marks = "".join("#" if tick in computed else "-" for tick in range(self.ticks))
        predictor = {
            "name": "polynomial", "order": order, "axis": "sigma", "basis": "output", "hindsight": True,
        }  # fmt: skip
        return replace(
            self.full, table={site: {ALL: marks} for site in self.full.models}, predictor=predictor
        )

    def lowest(self, schedule: Schedule) -> float:
        """Median PSNR in dB over the worse half."""
        return min(self.psnr(schedule), self.psnr(schedule, apart=True))

    def keeps(self, schedule: Schedule, quality: float) -> bool:
        """Both halves do; the second is rendered only if the first does."""
        return all(self.psnr(schedule, apart=apart) >= quality for apart in (False, True))

    def _thinned(self, schedule: Schedule, quality: float) -> Schedule:
        """Without the ticks that the quality does not need."""
        for tick in _by_crowding(schedule)[:THINNED]:
            if self.lowest(schedule) < quality + CLOSE:
                break
            thinner = _without(schedule, tick)
            if self.keeps(thinner, quality):
                schedule = thinner
        return schedule

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


def computed_ticks(schedule: Schedule) -> list[int]:
    """Those at which something is computed."""
    ticks: list[int] = schedule.decisions.flatten(1).any(1).nonzero().flatten().tolist()
    return ticks


def _by_crowding(schedule: Schedule) -> list[int]:
    """The computed ticks between the first and the last, those with the nearest neighbours first."""
    computed = computed_ticks(schedule)
    gaps = {
        tick: after - before
        for before, tick, after in zip(computed, computed[1:], computed[2:], strict=False)
    }
    return sorted(gaps, key=gaps.__getitem__)


def _without(schedule: Schedule, tick: int) -> Schedule:
    """The same with a straight line at this tick, wherever it is computed."""

    def marks(row: str) -> str:
        computes = row[tick] == Decision.COMPUTE.value
        return row[:tick] + Decision.LINE.value + row[tick + 1 :] if computes else row

    table = {
        site: {branch: marks(row) for branch, row in rows.items()} for site, rows in schedule.table.items()
    }
    return replace(schedule, table=table)


def _call(prompt: str | Call, seed: int, call: Call) -> Call:
    given = {"prompt": prompt} if isinstance(prompt, str) else prompt
    return {"generator": torch.Generator().manual_seed(seed), **call, **given}
