"""How much a result changes with an error that is made at one tick alone: measured by holding the output there."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from diffcache.config import RunFacts
from diffcache.evals.experiments.trajectory import pictures
from diffcache.evals.experiments.trajectory_prior import SAMPLES, Setting
from diffcache.evals.testbeds import zoo
from diffcache.host.components import guidance_scale_of
from diffcache.profiling.recording.covariance import covariance_of
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.interval import Interval
from diffcache.schedulers.ticks import Ticks
from diffcache.trajectory.kernel import RIGHT_ANGLE, Array
from diffcache.trajectory.sensitivity import Sensitivity

Felt = dict[str, Any]
"""A row: "steps" of the run, its scale of "guidance", the "tick" that was held, its "angle", and the "sensitivity" there."""

HELD = 16
"""So many ticks of a run are held, one in each run."""

SCALES = (1.0, 2.5, 5.0, 7.5)
"""Of guidance."""

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


def felt_in(testbed: str) -> Iterator[Setting]:
    """The runs in which a testbed's sensitivity is measured: in 50 and in 20 steps, and with other scales of guidance."""
    yield Setting(testbed, 50)
    yield Setting(testbed, 20)
    if testbed in zoo.GUIDED:
        for scale in SCALES:
            yield Setting(testbed, 20, scale)


def felt(setting: Setting) -> Iterator[Felt]:
    """The sensitivity of a testbed's pictures; nothing where the noise scheduler adds noise, or clips.

    It is the error of the pictures over the error that was made: influence times the change of the velocity since the tick before.
    """
    steps = setting.steps
    cell = pictures(setting.testbed, steps, SAMPLES, "covariance", setting.guidance)
    guidance = guidance_scale_of(cell.pipe, cell.call(steps))
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
            "guidance": guidance,
            "tick": tick,
            "angle": round(float(found.moments[tick].angle or 0), 4),
            "sensitivity": round(error / float(abs(influence[tick] * change)), 4),
        }


def averaged(testbeds: Collection[Sequence[Felt]]) -> Sensitivity:
    """The geometric mean over testbeds of how the sensitivity changes with the angle, at their median height.

    Testbeds differ in height since errors are those of pictures, and some decode their latents. Exponents of guidance are
    fitted to the differences between one testbed's runs.

    Args:
        testbeds: the rows of each.
    """
    angles = np.linspace(0, RIGHT_ANGLE, KNOTS)
    found = [_Logs.of(rows, angles) for rows in testbeds if rows]
    covariance = np.sum([logs.covariance for logs in found], axis=0)
    exponents = covariance / max(sum(logs.variance for logs in found), np.finfo(float).tiny)
    plain = np.array([logs.mean - logs.guidance * exponents for logs in found])
    heights = plain.mean(axis=1, keepdims=True)
    factors = np.exp((plain - heights).mean(axis=0) + np.median(heights))
    rounded = (tuple(values.round(4).tolist()) for values in (angles, factors, exponents))
    return Sensitivity(*rounded)


class _Logs(NamedTuple):
    """Logarithms of a testbed's sensitivities and of its scales of guidance, over its runs.

    Attributes:
        mean: of the sensitivity, [angles].
        guidance: the mean of the scales.
        covariance: of both, summed over runs, [angles].
        variance: of the scales, likewise.
    """

    mean: Array
    guidance: float
    covariance: Array
    variance: float

    @classmethod
    def of(cls, rows: Sequence[Felt], angles: Array) -> "_Logs":
        runs = list(_runs(rows))
        logs = np.array([_interpolated(run, angles) for run in runs])
        scales = np.log([run[0]["guidance"] for run in runs])
        apart = scales - scales.mean()
        return cls(logs.mean(axis=0), scales.mean(), apart @ logs, apart @ apart)


def _runs(rows: Sequence[Felt]) -> Iterator[list[Felt]]:
    for steps, guidance in {(row["steps"], row["guidance"]): None for row in rows}:
        run = (row for row in rows if (row["steps"], row["guidance"]) == (steps, guidance))
        yield sorted(run, key=lambda row: row["angle"])


def _interpolated(run: Sequence[Felt], angles: Array) -> Array:
    """The logarithm of a run's sensitivity at other angles."""
    found: Array = np.interp(
        angles, [row["angle"] for row in run], np.log([row["sensitivity"] for row in run])
    )
    return found
