"""Records the covariance of a denoiser's velocities over the ticks of full runs, for the method `trajectory`."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diffcache.config import CacheConfig
from diffcache.engine.observers import Observer
from diffcache.profiling.recording.calling import Call, accelerated, watched_run
from diffcache.profiling.recording.each_call import of_each_call
from diffcache.profiling.recording.journal import Entry
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.errors import TargetError
from diffcache.schedulers.moments import Moment
from diffcache.schedulers.steps import Step
from diffcache.trajectory.kernel import Array

FULL = UniformConfig(interval=1, order=1)
"""Computes everything, and stores velocities."""


@dataclass(frozen=True)
class Covariance:
    """Of velocities.

    Attributes:
        matrix: E<v_i, v_j> per element, over samples, guidance passes and runs, [ticks, ticks].
        moments: of the ticks.
    """

    matrix: Array
    moments: tuple[Moment, ...]


@dataclass
class Velocities(Observer):
    """Keeps the velocities of one full run in host memory.

    Attributes:
        of: by branch, one for each tick.
        moments: by tick.
    """

    of: dict[str, list[Tensor]] = field(default_factory=dict)
    moments: dict[int, Moment] = field(default_factory=dict)

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        self.of.setdefault(step.branch, []).append(features[0].float().cpu())
        self.moments[step.tick] = step.moment


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
    seen = Velocities()
    record = watched_run(pipe, call, seen)
    if len(record.models) != 1:
        raise TargetError("the covariance of one denoiser can be measured, and this pipeline runs several.")
    latents = next(iter(record.models.values())).latents
    moments = [astuple(seen.moments[tick]) for tick in sorted(seen.moments)]
    return Entry({"products": _products(seen, latents[0] if latents else ())}, {"moments": moments})


def _products(seen: Velocities, latent: Sequence[int]) -> Tensor:
    """Mean products of each two ticks of a run, float64 [ticks, ticks]. A learned variance is left out."""
    means = []
    for outputs in seen.of.values():
        if len(outputs) != len(seen.moments):
            continue  # a guidance pass that is not there at every tick
        rows = torch.stack([without_variance(output, latent).flatten() for output in outputs]).double()
        means.append(rows @ rows.T / rows.shape[1])
    if not means:
        raise TargetError("no guidance pass is called at every tick: nothing can be measured here.")
    return torch.stack(means).mean(dim=0)


def without_variance(output: Tensor, latent: Sequence[int]) -> Tensor:
    """The part of an output [batch, ...] that is as large as the latent, whose shape has no batch."""
    for dim, size in enumerate(latent, start=1):
        if dim < output.ndim and output.shape[dim] > size:
            output = output.narrow(dim, 0, size)
    return output
