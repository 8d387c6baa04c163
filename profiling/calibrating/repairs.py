"""Repairs: ERTACache's two corrections (arXiv 2508.21091) and hindsight, put on any static schedule by a few calls."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from diffcache.config import GUIDANCE
from diffcache.host.weight_formats import quantizations_of
from diffcache.noise_schedulers.respacing import respace, stretched
from diffcache.profiling.calibrating.moments import Moments
from diffcache.profiling.recording.calling import Call, accelerated, calls_hash, watched_run
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.recipes.replay import RESPACED, ReplayConfig
from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.schedule import Schedule

M = TypeVar("M", bound=Moments)

STRENGTH = 0.1
"""Of the published step adjustment: at full strength a held output always gets the least share, since at the first reuse
after a refresh it errs by exactly what the output has moved."""

MOST = 0.75
"""Share of the samples that a correction has to improve: a higher median of a few samples alone may be chance."""


@dataclass(frozen=True)
class Candidate:
    """A schedule with some corrections, and the PSNR in dB of each calibration sample to its full run."""

    schedule: Schedule
    psnrs: Tensor

    @classmethod
    def tried(cls, runs: FullRuns, schedule: Schedule) -> "Candidate":
        """A schedule, replayed beside the full runs."""
        return cls(schedule, runs.psnrs(ReplayConfig(schedule=schedule)))

    @property
    def psnr(self) -> float:
        """Median over samples."""
        return round(float(self.psnrs.median()), 2)

    def beats(self, other: "Candidate") -> bool:
        """On most samples, and by the median."""
        return self.psnr > other.psnr and float((self.psnrs > other.psnrs).double().mean()) >= MOST


def corrected(
    pipe: Any,
    calls: Sequence[Call],
    schedule: Schedule,
    *,
    closed: bool = False,
    rectify: bool = True,
    respace: bool = True,
    hindsight: bool = True,
) -> Schedule:
    """Puts corrections on any static schedule; each is kept only if it brings most of the samples nearer to their full runs.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: keyword arguments of each calibration call.
        schedule: of whole denoisers or of places inside them; corrections that it has are dropped.
        closed: fit along the trajectory that reuse leads to, not along the full one.
        rectify: fit affine maps.
        respace: adjust the steps to what the maps leave.
        hindsight: make good at computed ticks what the reused ones before them lacked, without affine maps.

    Returns:
        The schedule with what was kept (`producer["corrections"]["kept"]`); `measured["psnr_calibration"]` has what every
        candidate reached.

    Raises:
        ScheduleError: `respace` for places inside a denoiser, or with a noise scheduler that cannot take other noise levels;
            or a schedule that rebuilds the unconditional pass.
        TargetError: a call has not exactly one denoising loop.
    """
    runs = FullRuns(pipe, calls)
    tried = candidates(runs, schedule, closed=closed, rectify=rectify, respace=respace, hindsight=hindsight)
    kept = chosen(tried)
    corrections = {"calls": calls_hash(calls), "closed": closed, "kept": kept}
    reached = {name: candidate.psnr for name, candidate in tried.items()}
    return replace(
        tried[kept].schedule,
        producer={**schedule.producer, "corrections": corrections},
        measured={**schedule.measured, "psnr_calibration": reached},
    )


def candidates(
    runs: FullRuns,
    schedule: Schedule,
    *,
    closed: bool = False,
    rectify: bool = True,
    respace: bool = True,
    hindsight: bool = True,
) -> dict[str, Candidate]:
    """What `corrected` chooses from, by name.

    "schedule", "+ rectification", the rules of `respaced` on the better of these two, and all of them that have no affine maps
    once more, with hindsight. Arguments and errors are those of `corrected`.
    """
    plain = with_corrections(schedule, {})
    tried = {"schedule": Candidate.tried(runs, plain)}
    if rectify:
        tried["+ rectification"] = Candidate.tried(
            runs, rectified(runs.pipe, runs.calls, plain, closed=closed)
        )
    if respace:
        rules = respaced(runs.pipe, runs.calls, tried[chosen(tried)].schedule, closed=closed)
        tried |= {f"+ {rule}": Candidate.tried(runs, adjusted) for rule, adjusted in rules.items()}
    if hindsight and set(schedule.table) <= set(schedule.models):
        tried |= {
            f"{name}, hindsight": Candidate.tried(runs, looking_back(candidate.schedule))
            for name, candidate in tried.items()
            if candidate.schedule.corrections.keys() <= {RESPACED}
        }
    return tried


def chosen(tried: Mapping[str, Candidate]) -> str:
    """Name of the one that is kept: in turn, each that beats what was kept before."""
    names = iter(tried)
    best = next(names)
    for name in names:
        best = name if tried[name].beats(tried[best]) else best
    return best


def rectified(pipe: Any, calls: Sequence[Call], schedule: Schedule, *, closed: bool = False) -> Schedule:
    """A schedule with affine maps, fitted on the nominal noise levels; arguments and errors as for `corrected`."""
    plain = with_corrections(schedule, {})
    coefficients = shadowed(pipe, calls, plain, Moments(closed)).coefficients(schedule.num_ticks)
    return with_corrections(replace(plain, quantization=quantizations_of(pipe)), coefficients)


def respaced(
    pipe: Any, calls: Sequence[Call], schedule: Schedule, *, closed: bool = False
) -> dict[str, Schedule]:
    """A schedule at other noise levels, by name of the rule that makes the steps of its reused ticks shorter.

    "steps as published": see `Moments.shares`; "steps, a tenth of it": their shortening, scaled by `STRENGTH`; "steps by least
    squares": see `Moments.projections`. Rules that change no noise level are left out. Arguments and errors are those of
    `corrected`.
    """
    noise_scheduler = getattr(pipe, "scheduler", None)
    if schedule.sigmas is None or noise_scheduler is None:
        raise ScheduleError("the noise levels of this pipeline are not known: calibrate with respace=False.")
    if set(schedule.table) - set(schedule.models):
        raise ScheduleError(
            "the steps can be adjusted to schedules of whole denoisers: calibrate with respace=False."
        )
    moments = shadowed(pipe, calls, schedule, Moments(closed))
    respace(copy.deepcopy(noise_scheduler), schedule.sigmas)  # refuses what cannot be
    published = moments.shares(schedule.num_ticks)
    rules = {
        "steps as published": published,
        "steps, a tenth of it": [1 - STRENGTH * (1 - share) for share in published],
        "steps by least squares": moments.projections(schedule.num_ticks),
    }
    final = float(noise_scheduler.sigmas[-1])
    return {
        name: with_corrections(schedule, {**schedule.corrections, RESPACED: _levels(schedule, final, shares)})
        for name, shares in rules.items()
        if min(shares) < 1
    }


def with_corrections(schedule: Schedule, corrections: dict[str, Tensor]) -> Schedule:
    """A schedule with these corrections instead of its own."""
    fitted = schedule.fingerprint() if corrections else None
    return replace(schedule, corrections=corrections, fitted_with=fitted)


def looking_back(schedule: Schedule) -> Schedule:
    """A schedule with hindsight; its corrections stay."""
    predictor = {**schedule.predictor, "hindsight": True}
    return with_corrections(replace(schedule, predictor=predictor), dict(schedule.corrections))


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
