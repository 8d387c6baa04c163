"""What it would be worth to compute the conditional pass at a tick and to predict the unconditional one."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffcache.evals.harness.calls import call_of
from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.calling import accelerated
from diffcache.profiling.recording.trajectories import FULL
from diffcache.profiling.recording.velocities import Velocities, trajectory_of
from diffcache.trajectory.gaussian import BETWEEN, conditional_weights
from diffcache.trajectory.kernel import Array

GAPS = (2, 4)
"""Ticks between computed ticks, which are predicted where they are farthest from one."""

PAST = 3
"""Computed ticks that predict."""


def left(testbed: str, steps: int, samples: int) -> Iterator[dict[str, Any]]:
    """For each gap, "left": the root mean square error that is left where the conditional output of a tick is known, over that
    of a tick of which nothing is known. Half of the work of a tick is saved at 1.0, and nothing is lost at 0.0.
    """
    pipe = zoo.load(testbed)
    call = call_of(testbed, "covariance", steps, samples)
    with accelerated(pipe, FULL):
        run = trajectory_of(pipe, call, Velocities())
    conditional, other = (
        torch.stack([v.flatten() for v in of]).double() for of in zip(*run.passes, strict=True)
    )
    joint = _joint(conditional, conditional - other)
    for gap in GAPS:
        yield {
            "steps": steps,
            "guidance": run.guidance[0].counted,
            "gap": gap,
            "left": round(_left(joint, gap, run.guidance[0].counted), 3),
        }


def _joint(conditional: Tensor, difference: Tensor) -> Array:
    """The covariance of conditional outputs and of what guidance multiplies, [2 ticks, 2 ticks]."""
    both = torch.cat([conditional, difference])
    joint: Array = (both @ both.T / both.shape[1]).numpy()
    return joint


def _left(joint: Array, gap: int, scale: float) -> float:
    """Over all ticks of a run that have a past."""
    ticks = len(joint) // 2
    unknown, known = 0.0, 0.0
    for tick in range(PAST * gap, ticks):
        past = [tick - gap + 1 - i * gap for i in range(PAST)]
        both = [*past, *(ticks + i for i in past)]
        output = np.zeros(2 * ticks)
        output[tick], output[ticks + tick] = 1.0, scale - 1
        unknown += _variance(joint, both, output)
        known += _variance(joint, [*both, tick], output)
    return float(np.sqrt(known / unknown))


def _variance(joint: Array, known: list[int], wanted: Array) -> float:
    """Of a sum of outputs with these factors, where some outputs are known."""
    every = list(range(len(joint)))
    error = wanted.copy()
    error[known] -= conditional_weights(joint, known, every, BETWEEN) @ wanted
    return float(error @ joint @ error)
