"""Measures a denoiser's response: how its velocity changes with its sample, for the method `trajectory`."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diffcache.profiling.recording.calling import Call, accelerated
from diffcache.profiling.recording.covariance import FULL
from diffcache.profiling.recording.each_call import of_each_call
from diffcache.profiling.recording.journal import Entry
from diffcache.profiling.recording.velocities import Followed, Velocities, trajectory_of
from diffcache.recipes.even import EvenConfig
from diffcache.trajectory.response import Response

ALTERNATING = EvenConfig(speedup=2, order=0, hindsight=False, tail_steps=0)
"""Holds the output at every other tick: so an error is made at each of them, and computed ticks show what it does."""


def response_of(pipe: Any, calls: Sequence[Call]) -> Response | None:
    """Measured on two runs of each call: a full one, and one that makes errors. None where the denoiser's sample is not known.

    The pipeline is plain afterwards.

    Args:
        pipe: a pipeline.
        calls: arguments of each call, all of one length.

    Raises:
        TargetError: a call has no denoising loop or several, or several denoisers.
    """
    entries = of_each_call("response", calls, partial(_measured, pipe))
    new, old = (torch.stack([entry.tensors[name] for entry in entries]).sum(0) for name in ("new", "old"))
    return Response.measured(new.numpy(), old.numpy()) if old.any() else None


def _measured(pipe: Any, call: Call) -> Entry:
    """Sums of products of the errors of samples and velocities, float64 [ticks, 3]; zeros where there is none.

    "old": of all errors at a tick. "new": of what a tick whose output was held has added to them.
    """
    with accelerated(pipe, FULL):
        full = trajectory_of(pipe, call, Velocities())
    with accelerated(pipe, ALTERNATING):
        seen = Followed()
        reusing = trajectory_of(pipe, call, seen)
    ticks, truth, found = len(full.moments), full.velocities, reusing.velocities
    new, old = (torch.zeros(ticks, 3, dtype=torch.float64) for _ in range(2))
    before: tuple[Tensor, Sequence[Tensor]] | None = None
    for tick in range(1, ticks if full.samples else 1):
        sample = reusing.samples[tick] - full.samples[tick]
        outputs = [a - b for a, b in zip(found[tick], truth[tick], strict=True)]
        old[tick] = _products(sample, outputs)
        if tick - 1 in seen.reused and before is not None:
            new[tick] = _products(
                sample - before[0], [a - b for a, b in zip(outputs, before[1], strict=True)]
            )
        before = sample, outputs
    return Entry({"new": new, "old": old}, {})


def _products(sample: Tensor, outputs: Sequence[Tensor]) -> Tensor:
    """<v, x>, <v, v> and <x, x> of an error x of the sample and the errors v of outputs, in the mean over these: [3]."""
    x, found = sample.flatten().double(), []
    for output in outputs:
        v = output.flatten().double()
        found.append(torch.stack([v @ x, v @ v, x @ x]))
    return torch.stack(found).mean(dim=0)
