"""Calibrates MeanCache (arXiv 2601.19961): the peak-suppressed shortest path through full runs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffcache.prediction.average_velocity import AverageVelocity
from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.each_call import mean_over_calls, of_each_call
from diffcache.profiling.recording.features import features_of, mean_sizes
from diffcache.profiling.recording.frozen import frozen
from diffcache.profiling.recording.journal import Entry
from diffcache.profiling.recording.shares import check_share, ticks_for
from diffcache.profiling.recording.trajectories import FULL
from diffcache.recipes.meancache import MeanCacheConfig, levels_of
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.search.path import cheapest_path

BACKS = (1, 2, 3, 4, 5, 6)
"""How many ticks a jump may look back, as published."""

PEAKS = 5
"""The power of errors that is summed: large ones count for more, as published."""


def calibrate_meancache(pipe: Any, calls: Sequence[Call], compute: float = 0.5) -> Schedule:
    """Makes a MeanCache schedule for runs like these.

    A jump from one computed tick to the next costs the error of the average velocity over it, mean absolute values, with the best way
    to look back. The path with the least sum of 5th powers is taken.

    Args:
        pipe: a pipeline with one denoiser; it is plain afterwards.
        calls: keyword arguments of each calibration call, all with the same number of steps.
        compute: share of the ticks to compute: exactly as many as it pays for.

    Raises:
        TooLittle: the share does not pay for one tick.
        ConfigError: no share, no call, or calls with different numbers of steps.
        TargetError: a call has no denoising loop or several, or the pipeline has several denoisers.
    """
    check_share(compute)
    errors = measured_errors(pipe, calls)
    return schedule_on(pipe, calls[0], errors, compute)


def measured_errors(pipe: Any, calls: Sequence[Call]) -> Tensor:
    """The mean of the calls' errors (see `errors_of`)."""

    def measured(call: Call) -> Entry:
        velocities, record = features_of(pipe, call, FULL)
        return Entry({"errors": errors_of(velocities, levels_of(record.sigmas, len(velocities)))}, {})

    entries = of_each_call("meancache", calls, measured)
    return mean_over_calls([entry.tensors["errors"] for entry in entries])


def schedule_on(pipe: Any, call: Call, errors: Tensor, compute: float) -> Schedule:
    """The schedule of the path with the least sum of powers; of a run of this call."""
    least, choice = errors.min(dim=0)
    end = len(least) - 1
    costs = least.double().pow(PEAKS).expand(end + 1, -1, -1)
    ticks = cheapest_path(costs, ticks_for(compute, end))
    backs = [BACKS[choice[tick, to]] for tick, to in zip(ticks, [*ticks[1:], end], strict=True)]
    return frozen(pipe, call, MeanCacheConfig(ticks=tuple(ticks), backs=tuple(backs)))


def errors_of(velocities: Tensor, levels: Sequence[float]) -> Tensor:
    """The error of the average velocity over each jump, [ways to look back, T + 1, T + 1]; infinite where there is no jump.

    Args:
        velocities: at each tick of a full run, [T, elements].
        levels: noise level of each tick, and the one after the last.
    """
    end, steps = len(velocities), np.diff(levels)
    errors = torch.full((len(BACKS), end + 1, end + 1), torch.inf)
    for way, back in enumerate(BACKS):
        for tick in range(end):
            rule = AverageVelocity(levels, [0] * (tick + 1) + [back] * (end - tick - 1))
            rows = np.zeros(
                (end - tick, end)
            )  # of the errors at this tick, which has none, and at those after it
            rows[1:, : tick + 1] = np.array(rule.rows(range(tick + 1), end - 1)[tick + 1 :]).reshape(
                -1, tick + 1
            )
            rows[1:, tick + 1 :] -= np.eye(end - tick - 1)
            moved = np.cumsum(steps[tick:, None] * rows, axis=0)
            average = moved / (np.array(levels[tick + 1 :]) - levels[tick])[:, None]
            errors[way, tick, tick + 1 :] = mean_sizes(torch.from_numpy(average), velocities)
    return errors
