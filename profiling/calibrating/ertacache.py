"""ERTACache's calibration (arXiv 2508.21091): a schedule, an affine repair and respaced noise levels, from a few prompts."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from diffcache.profiling.calibrating.repairs import corrected
from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.record import record
from diffcache.profiling.recording.recording import Recording
from diffcache.schedulers.schedule import ALL, Schedule

ROUNDS = 3
"""Of the closed loop, at most: it settles after one or two."""


def calibrate(
    pipe: Any,
    calls: Sequence[Call],
    *,
    compute: float = 0.5,
    closed: bool = False,
    rectify: bool = True,
    respace: bool = True,
    hindsight: bool = True,
) -> Schedule:
    """Makes an ERTACache schedule for runs like these.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: keyword arguments of each calibration call, all with the same number of steps.
        compute: share of ticks to compute; the error bound lambda is the one that gives it.
        closed: measure and fit along the trajectory that reuse leads to, not along the full one.
        rectify, respace, hindsight: which corrections to try; each is kept where it helps (see `repairs.corrected`).

    Returns:
        A schedule that replays like any other: `accelerate(pipe, schedule)`.

    Raises:
        ScheduleError: `respace` with a noise scheduler that cannot take other noise levels, or in runs that begin midway.
        TargetError: a call has not exactly one denoising loop.
    """
    recording = record(pipe, calls)
    schedule = static_schedule(recording, policy(recording, compute))
    if closed:
        schedule = _settled(pipe, calls, schedule, compute)
    return corrected(
        pipe, calls, schedule, closed=closed, rectify=rectify, respace=respace, hindsight=hindsight
    )


def policy(recording: Recording, compute: float) -> list[int]:
    """The computed ticks: a tick is computed once the last refresh is further than lambda from it.

    l1rel(s) = mean|r_ref - r_s| / mean|r_s|, not accumulated; the first tick of each denoiser and the last are computed.
    Lambda is the smallest for which at most the share `compute` of all ticks is.
    """
    drift = torch.stack([curve.drift for curve in recording.leads]).nanmean(0)  # NaN across denoisers
    ticks = recording.num_ticks
    allowed = max(round(compute * ticks), 2)
    for bound in sorted(drift[~drift.isnan()].tolist()):
        computed = _refreshes(drift, bound)
        if len(computed) <= allowed:
            return computed
    return [0, ticks - 1]


def static_schedule(recording: Recording, computed: Sequence[int], basis: str = "residual") -> Schedule:
    """A recording's pipeline, computed at these ticks and held in between, in every branch."""
    marks = "".join("#" if tick in set(computed) else "-" for tick in range(recording.num_ticks))
    return Schedule(
        models=recording.models,
        table={denoiser: {ALL: marks} for denoiser in recording.models},
        noise_scheduler=recording.noise_scheduler,
        sigmas=recording.sigmas,
        predictor={"name": "hold", "basis": basis},
        producer={"method": "ertacache", "calibration": recording.prompts},
    )


def _refreshes(drift: Tensor, bound: float) -> list[int]:
    ticks, computed = len(drift), [0]
    for tick in range(1, ticks):
        if tick == ticks - 1 or not float(drift[tick, computed[-1]]) < bound:
            computed.append(tick)
    return computed


def _settled(pipe: Any, calls: Sequence[Call], schedule: Schedule, compute: float) -> Schedule:
    """Made anew from what is recorded where its own reuse leads, until it stands still."""
    for _ in range(ROUNDS):
        recording = record(pipe, calls, along=schedule)
        again = static_schedule(recording, policy(recording, compute))
        if again.table == schedule.table:
            break
        schedule = again
    return schedule
