"""Measures a denoiser's response: how its velocity changes with its sample, for the method `trajectory`.

Large samples and velocities are compared by sketches of `trajectories.SIZE` numbers. So what is measured errs a little: the mean
response <v, x> / <x, x> by about 1 / sqrt(SIZE) of |v| / |x|, which is 0.8 % of it, and the spread by about 0.8 % of itself.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.journal import Entry
from diffcache.profiling.recording.trajectories import alternating_trajectories, full_trajectories
from diffcache.trajectory.response import Response


def response_of(pipe: Any, calls: Sequence[Call]) -> Response | None:
    """Measured on two runs of each call: a full one, and one that makes errors. None where the denoiser's sample is not known.

    Nor where it has another size than the velocities. The full runs are those of `covariance_of`: an open journal keeps them for both.
    The pipeline is plain afterwards.

    Args:
        pipe: a pipeline.
        calls: arguments of each call, all of one length.

    Raises:
        TargetError: a call has no denoising loop or several, denoisers that take turns, or runs of different lengths.
    """
    full = full_trajectories(pipe, calls)
    if not all("samples" in entry.tensors for entry in full):
        return None
    found = [_answers(*pair) for pair in zip(full, alternating_trajectories(pipe, calls), strict=True)]
    products = torch.stack(found).sum(dim=0)
    return Response.measured(products.numpy()) if products.any() else None


def _answers(full: Entry, alternating: Entry) -> Tensor:
    """Sums of products of the errors of samples and velocities, float64 [ticks, 3]; zeros where there is none."""
    return _products(
        *(_errors(full.tensors[name], alternating.tensors[name]) for name in ("samples", "velocities"))
    )


def _errors(full: Tensor, alternating: Tensor) -> Tensor:
    """How two runs differ at each tick, float64 [ticks, ...]. They begin alike: there is no error at tick 0, which is not given."""
    errors = alternating.double() - full.double()
    return torch.cat([torch.zeros_like(errors[:1]), errors])


def _products(x: Tensor, v: Tensor) -> Tensor:
    """<v, x>, <v, v> and <x, x> of errors x of samples and v of velocities, in the mean over a tick's tensors: [ticks, 3].

    Args:
        x: [ticks, numbers].
        v: [ticks, tensors, numbers].
    """
    vx = torch.einsum("tpn,tn->tp", v, x).mean(dim=1)
    return torch.stack([vx, v.square().sum(dim=2).mean(dim=1), x.square().sum(dim=1)], dim=1)
