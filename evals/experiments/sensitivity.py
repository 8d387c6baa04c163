"""How much a result changes with an error that is made at one tick alone: measured by holding the output there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diffcache.config import RunFacts
from diffcache.evals.experiments.curves import Curve
from diffcache.evals.experiments.trajectory import pictures
from diffcache.evals.experiments.trajectory_prior import SAMPLES, Setting
from diffcache.host.components import guidance_scale_of
from diffcache.profiling.recording.covariance import covariance_of
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.interval import Interval
from diffcache.schedulers.ticks import Ticks

Felt = dict[str, Any]
"""A row: "steps" of the run, its scale of "guidance", the "tick" that was held, its "angle", and the "sensitivity" there."""

HELD = 16
"""So many ticks of a run are held, one in each run."""


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


def curves(rows: Sequence[Felt]) -> Iterator[Curve]:
    """One for each run of a testbed."""
    for steps, guidance in {(row["steps"], row["guidance"]): None for row in rows}:
        run = [row for row in rows if (row["steps"], row["guidance"]) == (steps, guidance)]
        yield Curve(guidance, [row["angle"] for row in run], [row["sensitivity"] for row in run])
