"""Calibrates ERTACache (arXiv 2508.21091): a schedule with affine corrections and other noise levels, from a few calls."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from diffcache.profiling.calibrating.corrections import ALL_CORRECTIONS, Corrections, calibrate_corrections
from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.record import record_closed_loop, recorded
from diffcache.profiling.recording.recording import Recording
from diffcache.profiling.recording.shares import TooLittle, ticks_for
from diffcache.schedulers.schedule import ALL, Schedule, marks_of

ROUNDS = 3
"""The most rounds of the closed loop. On the testbeds the schedule stays the same after one or two."""


def calibrate_ertacache(
    pipe: Any, calls: Sequence[Call], compute: float = 0.5, corrections: Corrections = ALL_CORRECTIONS
) -> Schedule:
    """Makes an ERTACache schedule for runs like these.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: keyword arguments of each calibration call, all with the same number of steps.
        compute: share of the ticks to compute: exactly as many as it pays for. The error bound lambda follows from it.
        corrections: which corrections to try (see `calibrate_corrections`). With `closed`, the ticks are also chosen along the
            trajectory that the reuse leads to.

    Returns:
        A schedule that replays like any other: `accelerate(pipe, schedule)`.

    Raises:
        ConfigError: as `policy`.
        ScheduleError: steps are to be adjusted, but the noise scheduler cannot take other noise levels, or runs start midway.
        TargetError: a call had no denoising loop, or several.
    """
    recording = recorded(pipe, calls)
    schedule = static_schedule(recording, policy(recording, compute))
    if corrections.closed:
        schedule = _settled(pipe, calls, schedule, compute)
    return calibrate_corrections(pipe, calls, schedule, corrections)


def policy(recording: Recording, compute: float) -> list[int]:
    """The ticks to compute: each tick that is further than lambda from the last computed one.

    The distance is mean|r_ref - r_s| / mean|r_s|, not accumulated. The first tick of each denoiser and the last tick are
    always computed. Lambda is the smallest bound with which at most the share `compute` of all ticks is computed. Where it
    leaves fewer, ticks are added that are furthest from the one that they would reuse (our choice).

    Raises:
        ConfigError: no share.
        TooLittle: one that does not pay for the ticks that are always computed.
    """
    drift = torch.stack([curve.drift for curve in recording.leads]).nanmean(0)  # NaN between denoisers
    allowed = ticks_for(compute, recording.num_ticks)
    for bound in [*sorted(drift[~drift.isnan()].tolist()), math.inf]:
        computed = _beyond(drift, bound)
        if len(computed) <= allowed:
            break
    if len(computed) > allowed:
        least = len(computed) / recording.num_ticks
        raise TooLittle(f"ertacache: compute={compute} is too little here: give at least {least:.3f}.", least)
    while len(computed) < allowed:
        reused = {
            tick: max(c for c in computed if c < tick) for tick in range(len(drift)) if tick not in computed
        }
        furthest = max(reused, key=lambda tick: float(drift[tick, reused[tick]]))
        computed = sorted([*computed, furthest])
    return computed


def static_schedule(recording: Recording, computed: Sequence[int]) -> Schedule:
    """A schedule for the recorded pipeline that computes these ticks in every branch and holds between them."""
    marks = marks_of(tick in set(computed) for tick in range(recording.num_ticks))
    return Schedule(
        models=recording.models,
        table={denoiser: {ALL: marks} for denoiser in recording.models},
        noise_scheduler=recording.noise_scheduler,
        sigmas=recording.sigmas,
        predictor=recording.with_scale({"name": "hold", "basis": "residual"}),
        producer={"method": "ertacache", "calibration": recording.prompts},
    )


def _beyond(drift: Tensor, bound: float) -> list[int]:
    """The ticks that are not within the bound of the last one in this list; and the last tick."""
    ticks, computed = len(drift), [0]
    for tick in range(1, ticks):
        if tick == ticks - 1 or not float(drift[tick, computed[-1]]) < bound:  # NaN computes
            computed.append(tick)
    return computed


def _settled(pipe: Any, calls: Sequence[Call], schedule: Schedule, compute: float) -> Schedule:
    """Records along the schedule's own reuse and chooses ticks again, until the schedule stays the same."""
    for _ in range(ROUNDS):
        recording = record_closed_loop(pipe, calls, schedule)
        again = static_schedule(recording, policy(recording, compute))
        if again.table == schedule.table:
            break
        schedule = again
    return schedule
