"""Repairs: ERTACache's two corrections (arXiv 2508.21091), fitted to any static schedule on a few calls."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from diffcache.config import GUIDANCE
from diffcache.precision import quantizations_of
from diffcache.profiling.full_runs import FullRuns
from diffcache.profiling.moments import Moments
from diffcache.profiling.record import Call, accelerated, calls_hash, watched_run
from diffcache.recipes.replay import RESPACED, ReplayConfig
from diffcache.respacing import stretched
from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.schedule import Schedule

M = TypeVar("M", bound=Moments)

STRENGTHS = (1.0, 0.3, 0.1)
"""Of the published step adjustment, which are tried. At 1 a held output always gets the least share: at the first reuse
after a refresh it errs by exactly what the output has moved."""


def corrected(
    pipe: Any,
    calls: Sequence[Call],
    schedule: Schedule,
    *,
    closed: bool = False,
    rectify: bool = True,
    respace: bool = True,
) -> Schedule:
    """Puts corrections on any static schedule; each is kept only if it raises the median PSNR of the calls to their full runs.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: keyword arguments of each calibration call.
        schedule: of whole denoisers or of places inside them; corrections that it has are dropped.
        closed: fit along the trajectory that reuse leads to, not along the full one.
        rectify: fit affine maps.
        respace: adjust the steps to what the maps leave.

    Returns:
        The schedule with what was kept; `measured["psnr_calibration"]` has what every candidate reached.

    Raises:
        ScheduleError: `respace` for places inside a denoiser, or where noise levels are not known; or a schedule that
            rebuilds the unconditional pass.
        TargetError: a call has not exactly one denoising loop.
    """
    best = Best(FullRuns(pipe, calls))
    best.offer("schedule", plain := with_corrections(schedule, {}))
    if rectify:
        best.offer("rectified", rectified(pipe, calls, plain, closed=closed))
    if respace:
        for name, candidate in respaced(pipe, calls, best.chosen, closed=closed).items():
            best.offer(name, candidate)
    producer = {**schedule.producer, "corrections": {"calls": calls_hash(calls), "closed": closed}}
    measured = {**schedule.measured, "psnr_calibration": best.reached}
    return replace(best.chosen, producer=producer, measured=measured)


def rectified(pipe: Any, calls: Sequence[Call], schedule: Schedule, *, closed: bool = False) -> Schedule:
    """A schedule with affine maps, fitted on the nominal noise levels; arguments and errors as for `corrected`."""
    plain = with_corrections(schedule, {})
    coefficients = shadowed(pipe, calls, plain, Moments(closed)).coefficients(schedule.num_ticks)
    return with_corrections(replace(plain, quantization=quantizations_of(pipe)), coefficients)


def respaced(
    pipe: Any, calls: Sequence[Call], schedule: Schedule, *, closed: bool = False
) -> dict[str, Schedule]:
    """A schedule at other noise levels, by name of the rule that makes the steps of its reused ticks shorter.

    "steps as published": see `Moments.shares`; "steps, 0.3 of it": their shortening, scaled; "steps, least squares": see
    `Moments.projections`. Rules that would leave the noise levels as they are, are left out. Arguments and errors are those
    of `corrected`.
    """
    if schedule.sigmas is None:
        raise ScheduleError("the noise levels of this pipeline are not known: calibrate with respace=False.")
    if set(schedule.table) - set(schedule.models):
        raise ScheduleError(
            "the steps can be adjusted to schedules of whole denoisers: calibrate with respace=False."
        )
    moments = shadowed(pipe, calls, schedule, Moments(closed))
    published = moments.shares(schedule.num_ticks)
    rules = {"steps as published": published}
    rules |= {f"steps, {k} of it": [1 - k * (1 - share) for share in published] for k in STRENGTHS[1:]}
    rules["steps, least squares"] = moments.projections(schedule.num_ticks)
    final = float(pipe.scheduler.sigmas[-1])
    return {
        name: with_corrections(schedule, {**schedule.corrections, RESPACED: _levels(schedule, final, shares)})
        for name, shares in rules.items()
        if min(shares) < 1
    }


def with_corrections(schedule: Schedule, corrections: dict[str, Tensor]) -> Schedule:
    """A schedule with these corrections instead of its own."""
    fitted = schedule.fingerprint() if corrections else None
    return replace(schedule, corrections=corrections, fitted_with=fitted)


@dataclass
class Best:
    """Of several candidates, the one nearest to the full runs.

    Attributes:
        reached: what each got, median PSNR in dB.
    """

    runs: FullRuns
    reached: dict[str, float] = field(default_factory=dict)
    _schedules: dict[str, Schedule] = field(default_factory=dict)

    @property
    def chosen(self) -> Schedule:
        """The best so far."""
        return self._schedules[max(self.reached, key=lambda name: self.reached[name])]

    def offer(self, name: str, candidate: Schedule) -> None:
        self.reached[name] = round(self.runs.psnr(ReplayConfig(schedule=candidate)), 2)
        self._schedules[name] = candidate


def _levels(schedule: Schedule, final: float, shares: Sequence[float]) -> Tensor:
    assert schedule.sigmas is not None
    return torch.tensor(stretched(schedule.sigmas, final, shares), dtype=torch.float64)


def shadowed(pipe: Any, calls: Sequence[Call], schedule: Schedule, moments: M) -> M:
    """Moments of what a schedule predicts, over the calls.

    Raises:
        ScheduleError: it rebuilds the unconditional pass.
    """
    if any(site.endswith(f".{GUIDANCE}") for site in schedule.table):
        raise ScheduleError(
            "a schedule that rebuilds the unconditional pass cannot be corrected: leave its guidance out."
        )
    with accelerated(pipe, ReplayConfig(schedule=schedule)):
        for call in calls:
            watched_run(pipe, call, moments)
    return moments
