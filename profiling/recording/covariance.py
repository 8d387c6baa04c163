"""Records the covariance of velocities over the ticks of full runs, for the method `trajectory`."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diffcache.config import CacheConfig
from diffcache.profiling.recording.calling import Call, accelerated
from diffcache.profiling.recording.each_call import of_each_call
from diffcache.profiling.recording.journal import Entry
from diffcache.profiling.recording.velocities import Trajectory, Velocities, trajectory_of
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.errors import TargetError
from diffcache.schedulers.moments import Moment
from diffcache.trajectory.kernel import Array

FULL = UniformConfig(interval=1, order=1)
"""Computes everything, and stores velocities."""


@dataclass(frozen=True)
class Covariance:
    """Of velocities.

    Attributes:
        matrix: E<v_i, v_j> per element of the guided velocity, over samples and runs, [ticks, ticks].
        moments: of the ticks.
    """

    matrix: Array
    moments: tuple[Moment, ...]


def covariance_of(pipe: Any, calls: Sequence[Call], config: CacheConfig = FULL) -> Covariance:
    """Measured on full runs of some calls of one length. The pipeline is plain afterwards.

    Args:
        pipe: a pipeline.
        calls: arguments of each call.
        config: computes everything, and stores velocities.

    Raises:
        TargetError: a call has no denoising loop or several, several denoisers, or runs of different lengths.
    """
    with accelerated(pipe, config):
        entries = of_each_call("covariance", calls, partial(_measured, pipe))
    found = [entry.tensors["products"] for entry in entries]
    if len({products.shape for products in found}) > 1:
        raise TargetError("the calls have runs of different lengths: give all of them as many steps.")
    moments = tuple(Moment(*numbers) for numbers in entries[-1].facts["moments"])
    return Covariance((torch.stack(found).sum(0) / len(calls)).numpy(), moments)


def _measured(pipe: Any, call: Call) -> Entry:
    """The products of one call's velocities, and the moments of its ticks."""
    run = trajectory_of(pipe, call, Velocities())
    return Entry({"products": _products(run)}, {"moments": [astuple(moment) for moment in run.moments]})


def _products(run: Trajectory) -> Tensor:
    """Mean products of each two ticks of a run, float64 [ticks, ticks]."""
    means = []
    for velocities in zip(*run.velocities, strict=True):
        rows = torch.stack([velocity.flatten() for velocity in velocities]).double()
        means.append(rows @ rows.T / rows.shape[1])
    return torch.stack(means).mean(dim=0)
