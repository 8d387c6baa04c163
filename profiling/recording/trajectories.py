"""What single runs show of a denoiser, for its covariance and its response. Each run is rendered once, whoever asks for it."""

from collections.abc import Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diffcache.config import CacheConfig
from diffcache.profiling.recording.calling import Call, accelerated
from diffcache.profiling.recording.each_call import of_each_call
from diffcache.profiling.recording.journal import Entry
from diffcache.profiling.recording.sketch import sketched
from diffcache.profiling.recording.velocities import Followed, Trajectory, Velocities, trajectory_of
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.errors import TargetError
from diffcache.trajectory.process import MODELLED


class _Asking(CacheConfig):
    """A method whose runs are asked how a loop guides."""

    @property
    def counts_guidance(self) -> bool:
        return True


class _Full(_Asking, UniformConfig):
    pass


class _Alternating(_Asking, EvenConfig):
    pass


FULL = _Full(interval=1, order=1)
"""Computes everything, and stores velocities."""

ALTERNATING = _Alternating(speedup=2, order=0, hindsight=False, tail_steps=0)
"""Holds the output at every other tick: so an error is made at each of them, and computed ticks show what it does."""

SIZE = 2**14
"""Numbers in a sketch: 64 KiB. A run of 50 ticks takes 6.5 MB; the response is measured to about 1 % with them (see response.py)."""


def full_trajectories(pipe: Any, calls: Sequence[Call]) -> list[Entry]:
    """What the full run of each call shows. The pipeline is plain afterwards.

    Returns:
        Of each call the tensor "products", the mean products of each two ticks' velocities, float64 [ticks, ticks]; "amplification", which guidance
        shows at the first tick, float64 []; "result", the sample after the last step as `each_short` keeps it, where that step is seen; the ticks'
        "moments" and "handovers"; and the tensors of `_compressed`.

    Raises:
        TargetError: a call has no denoising loop or several, denoisers that take turns, or runs of different lengths.
    """
    entries = of_each_call("guided-trajectory", calls, partial(_full, pipe), velocity=MODELLED)
    if len({entry.tensors["products"].shape for entry in entries}) > 1:
        raise TargetError("the calls have runs of different lengths: give all of them as many steps.")
    return entries


def alternating_trajectories(pipe: Any, calls: Sequence[Call]) -> list[Entry]:
    """What a run of each call shows that holds every other output. The pipeline is plain afterwards.

    Returns:
        Of each call the tensors of `_compressed`.

    Raises:
        TargetError: as `full_trajectories`.
    """
    return of_each_call("alternating-run", calls, partial(_alternating, pipe), velocity=MODELLED)


def _full(pipe: Any, call: Call) -> Entry:
    with accelerated(pipe, FULL):
        run = trajectory_of(pipe, call, Velocities())
    moments = [astuple(moment) for moment in run.moments]
    facts = {"moments": moments, "handovers": run.handovers}
    amplification = torch.tensor(run.amplification, dtype=torch.float64)
    result = {} if run.result is None else {"result": each_short(run.result)}
    return Entry(
        {"products": _products(run), "amplification": amplification, **result, **_compressed(run)}, facts
    )


def _alternating(pipe: Any, call: Call) -> Entry:
    with accelerated(pipe, ALTERNATING):
        run = trajectory_of(pipe, call, Followed())
    return Entry(_compressed(run), {})


def _products(run: Trajectory) -> Tensor:
    """Mean products of each two ticks of a run, float64 [ticks, ticks]."""
    means = []
    for velocities in zip(*run.velocities, strict=True):
        rows = torch.stack([velocity.flatten() for velocity in velocities]).double()
        means.append(rows @ rows.T / rows.shape[1])
    return torch.stack(means).mean(dim=0)


def _compressed(run: Trajectory) -> dict[str, Tensor]:
    """A run's samples and velocities from tick 1 on, in so few numbers that runs can be kept, and compared later.

    Returns:
        "samples" [ticks - 1, numbers] and "velocities" [ticks - 1, tensors of each tick, numbers], both zeros where the sample is not known:
        at the first call of another denoiser. Nothing where no sample is known, or they have another size than velocities.
    """
    ticks, known = range(1, len(run.moments)), run.samples
    velocities = run.velocities
    if not known or any(v.numel() != known[tick].numel() for tick in known for v in velocities[tick]):
        return {}
    nothing = torch.zeros_like(next(iter(known.values())))
    return {
        "samples": torch.stack([_short(known.get(tick, nothing)) for tick in ticks]),
        "velocities": torch.stack(
            [
                torch.stack([_short(v if tick in known else nothing) for v in velocities[tick]])
                for tick in ticks
            ]
        ),
    }


def each_short(batch: Tensor) -> Tensor:
    """Each sample of a batch, flat, or its sketch if it is larger: float32 [samples, numbers]."""
    return torch.stack([_short(sample.float().cpu()) for sample in batch])


def _short(feature: Tensor) -> Tensor:
    """The feature itself, flat, where it is no larger than a sketch; else its sketch. Both are linear."""
    return feature.flatten() if feature.numel() <= SIZE else sketched(feature, SIZE)
