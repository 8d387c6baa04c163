"""How much a result changes with an error that is made at one tick alone: measured by holding the output there."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diffcache.config import RunFacts
from diffcache.evals.experiments.trajectory import pictures
from diffcache.evals.experiments.trajectory_prior import SAMPLES
from diffcache.profiling.recording.covariance import covariance_of
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.interval import Interval
from diffcache.schedulers.ticks import Ticks
from diffcache.trajectory.kernel import RIGHT_ANGLE
from diffcache.trajectory.sensitivity import Sensitivity

Felt = dict[str, Any]
"""A row: "steps" of the run, the "tick" that was held, its "angle", and the "sensitivity" there."""

HELD = 16
"""So many ticks of a run are held, one in each run."""

KNOTS = 17
"""Angles at which a prior gives the sensitivity."""


@dataclass(frozen=True, kw_only=True)
class Watched(UniformConfig):
    """Computes everything, stores velocities, and keeps what is known of its runs."""

    interval: int = 1
    order: int = 1
    hindsight: bool | None = True
    runs: list[RunFacts] = field(default_factory=list)

    def scheduler(self, run: RunFacts) -> Interval:
        self.runs.append(run)
        return super().scheduler(run)


@dataclass(frozen=True, kw_only=True)
class AllButOne(EvenConfig):
    """Holds the output at one tick, computes all others, and corrects nothing."""

    speedup: float = 1.0
    order: int = 0
    hindsight: bool | None = False
    warmup_steps: int | None = 1
    tail_steps: int = 0
    held: int = 1

    def scheduler(self, run: RunFacts) -> Ticks:
        return Ticks([tick for tick in range(run.num_ticks or 0) if tick != self.held])


def felt(testbed: str, steps: int) -> Iterator[Felt]:
    """The sensitivity of a testbed's pictures; nothing where the noise scheduler adds noise, or clips.

    It is the error of the pictures over the error that was made: influence times the change of the velocity since the tick before.
    """
    cell = pictures(testbed, steps, SAMPLES, "covariance")
    watched = Watched()
    found = covariance_of(cell.pipe, [cell.call(steps)], watched)
    influence, square = watched.runs[-1].influence, found.matrix
    if influence is None:
        return
    last = len(found.moments) - 1
    for tick in np.unique(np.linspace(1, last - 1, HELD).round().astype(int)).tolist():
        change = np.sqrt(square[tick, tick] - 2 * square[tick, tick - 1] + square[tick - 1, tick - 1])
        error = cell.error(cell.method(AllButOne(held=tick)))
        yield {
            "steps": steps,
            "tick": tick,
            "angle": round(float(found.moments[tick].angle or 0), 4),
            "sensitivity": round(error / float(abs(influence[tick] * change)), 4),
        }


def averaged(testbeds: Collection[Sequence[Felt]]) -> Sensitivity:
    """The geometric mean over testbeds of how the sensitivity changes with the angle, at their median height.

    Testbeds differ in height since errors are those of pictures, and some decode their latents.

    Args:
        testbeds: the rows of each.
    """
    angles = np.linspace(0, RIGHT_ANGLE, KNOTS)
    logs = np.array(
        [np.mean([_log(run, angles) for run in _runs(rows)], axis=0) for rows in testbeds if rows]
    )
    heights = logs.mean(axis=1, keepdims=True)
    factors = np.exp((logs - heights).mean(axis=0) + np.median(heights))
    return Sensitivity(tuple(angles.round(4).tolist()), tuple(factors.round(4).tolist()))


def _runs(rows: Sequence[Felt]) -> Iterator[list[Felt]]:
    for steps in {row["steps"] for row in rows}:
        yield sorted((row for row in rows if row["steps"] == steps), key=lambda row: row["angle"])


def _log(rows: Sequence[Felt], angles: Any) -> Any:
    """The logarithm of the sensitivity, interpolated."""
    return np.interp(angles, [row["angle"] for row in rows], np.log([row["sensitivity"] for row in rows]))
