"""Measures the covariance of velocities over the ticks of full runs, for the method `trajectory`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.trajectories import full_trajectories
from diffcache.schedulers.errors import TargetError
from diffcache.schedulers.moments import Moment
from diffcache.trajectory.kernel import Array


@dataclass(frozen=True)
class Covariance:
    """Of velocities.

    Attributes:
        matrix: E<v_i, v_j> per element of the guided velocity, over samples and runs, [ticks, ticks].
        moments: of the ticks.
        handovers: the ticks at which another denoiser takes over.
        amplification: by guidance, as the first tick shows it (see `Guidance`); 1 without guidance.
    """

    matrix: Array
    moments: tuple[Moment, ...]
    handovers: tuple[int, ...] = ()
    amplification: float = 1.0


def covariance_of(pipe: Any, calls: Sequence[Call]) -> Covariance:
    """Measured on full runs of some calls of one length. The pipeline is plain afterwards.

    Args:
        pipe: a pipeline.
        calls: arguments of each call.

    Raises:
        TargetError: a call has no denoising loop or several, denoisers that take turns, or runs of different lengths or noise levels.
    """
    entries = full_trajectories(pipe, calls)
    if any(entry.facts != entries[0].facts for entry in entries):
        raise TargetError("the calls have runs of different noise levels: give all of them the same size.")
    products = torch.stack([entry.tensors["products"] for entry in entries])
    moments = tuple(Moment(*numbers) for numbers in entries[-1].facts["moments"])
    matrix, handovers = (products.sum(0) / len(calls)).numpy(), tuple(entries[-1].facts["handovers"])
    amplification = float(torch.stack([entry.tensors["amplification"] for entry in entries]).mean())
    return Covariance(matrix, moments, handovers, round(amplification, 2))
