"""Corrections for any static schedule: ERTACache's two (arXiv 2508.21091) and hindsight, calibrated on a few calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from diffcache.config import GUIDANCE
from diffcache.host.weight_formats import quantizations_of
from diffcache.noise_schedulers.respacing import prepared, respace, stretched
from diffcache.profiling.calibrating.regression import SequentialRegression, ShadowRegression
from diffcache.profiling.recording.calling import Call, accelerated, calls_hash, watched_run
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.recording.journal import Entry, journal, key_of
from diffcache.profiling.recording.pictures import median_of
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.schedule_fields import RESPACED
from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.schedule import Schedule

R = TypeVar("R", bound=ShadowRegression)

STRENGTH = 0.1
"""Share of the published step adjustment in the weak variant. Our choice: at full strength a held output always gets the
shortest step, because at the first reuse after a computed tick it errs by exactly what the output has moved."""

MOST = 0.75
"""Share of the samples that a correction must improve. With few samples a higher median alone may be chance. Our choice."""


@dataclass(frozen=True)
class Corrections:
    """Which corrections to try.

    Attributes:
        closed: fit along the trajectory that the reuse leads to (closed loop), not along the full run's.
        rectify: try affine maps of what is reused.
        respace: try shorter steps at reused ticks, after the error that the maps leave.
        hindsight: try hindsight, on the candidates without affine maps.
    """

    closed: bool = False
    rectify: bool = True
    respace: bool = True
    hindsight: bool = True


ALL_CORRECTIONS = Corrections()


@dataclass(frozen=True)
class Candidate:
    """A schedule with some corrections, and the PSNR of each calibration sample to its full run, in dB."""

    schedule: Schedule
    psnrs: Tensor

    @classmethod
    def tried(cls, runs: FullRuns, schedule: Schedule) -> "Candidate":
        """Replays a schedule and compares it with the full runs."""
        return cls(schedule, runs.psnrs(ReplayConfig(schedule=schedule)))

    @property
    def psnr(self) -> float:
        """Median over the samples."""
        return round(median_of(self.psnrs), 2)

    def beats(self, other: "Candidate") -> bool:
        """Whether its median is higher, and `MOST` of its samples are better."""
        return self.psnr > other.psnr and float((self.psnrs > other.psnrs).double().mean()) >= MOST


def calibrate_corrections(
    pipe: Any, calls: Sequence[Call], schedule: Schedule, corrections: Corrections = ALL_CORRECTIONS
) -> Schedule:
    """Adds corrections to a static schedule, each only if it brings most of the samples nearer to their full runs.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: keyword arguments of each calibration call.
        schedule: of whole denoisers or of sites inside them. Corrections that it already has are dropped.
        corrections: which to try.

    Returns:
        The schedule with the corrections that were kept, which `producer["corrections"]["kept"]` names.
        `measured["psnr_calibration"]` has the PSNR of every candidate.

    Raises:
        ScheduleError: steps are to be adjusted, but the schedule is of sites inside a denoiser, or the noise scheduler cannot
            take other noise levels; or the schedule rebuilds the unconditional pass.
        TargetError: a call had no denoising loop, or several.
    """
    tried = candidates(FullRuns(pipe, calls), schedule, corrections)
    kept = chosen(tried)
    made = {"calls": calls_hash(calls), "closed": corrections.closed, "kept": kept}
    reached = {name: candidate.psnr for name, candidate in tried.items()}
    return replace(
        tried[kept].schedule,
        producer={**schedule.producer, "corrections": made},
        measured={**schedule.measured, "psnr_calibration": reached},
    )


def candidates(
    runs: FullRuns, schedule: Schedule, corrections: Corrections = ALL_CORRECTIONS
) -> dict[str, Candidate]:
    """The candidates of `calibrate_corrections` by name; it raises the same errors.

    They are "schedule", "+ rectification", the better of these two with each rule of `respaced`, and all that have no affine
    maps once more with hindsight.
    """
    plain = with_corrections(schedule, {})
    tried = {"schedule": Candidate.tried(runs, plain)}
    if corrections.rectify:
        with_maps = rectified(runs.pipe, runs.calls, plain, closed=corrections.closed)
        tried["+ rectification"] = Candidate.tried(runs, with_maps)
    if corrections.respace:
        rules = respaced(runs.pipe, runs.calls, tried[chosen(tried)].schedule, closed=corrections.closed)
        tried |= {f"+ {rule}": Candidate.tried(runs, adjusted) for rule, adjusted in rules.items()}
    if corrections.hindsight and set(schedule.table) <= set(schedule.models):
        tried |= {
            f"{name}, hindsight": Candidate.tried(runs, with_hindsight(candidate.schedule))
            for name, candidate in tried.items()
            if candidate.schedule.corrections.keys() <= {RESPACED}
        }
    return tried


def chosen(tried: Mapping[str, Candidate]) -> str:
    """The name of the candidate that is kept: in their order, each replaces the one before if it beats it."""
    names = iter(tried)
    best = next(names)
    for name in names:
        best = name if tried[name].beats(tried[best]) else best
    return best


def rectified(pipe: Any, calls: Sequence[Call], schedule: Schedule, *, closed: bool = False) -> Schedule:
    """A schedule with affine maps, fitted at the nominal noise levels.

    Arguments and errors are those of `calibrate_corrections`.
    """
    plain = with_corrections(schedule, {})
    fit = run_in_shadow(pipe, calls, plain, ShadowRegression(closed))
    quantised = replace(plain, quantization=quantizations_of(pipe))
    return with_corrections(quantised, fit.coefficients(schedule.num_ticks))


def respaced(
    pipe: Any, calls: Sequence[Call], schedule: Schedule, *, closed: bool = False
) -> dict[str, Schedule]:
    """A schedule at other noise levels, so that reused ticks make shorter steps; by name of the rule.

    - "steps as published": `ShadowRegression.published_shares`, over how far the output has moved since the tick before.
    - "steps, over the output": the same over the size of the output, the other reading of the paper's summaries.
    - "steps, a tenth of it": these steps, shortened by the share `STRENGTH` only.
    - "steps by least squares": `ShadowRegression.least_squares_shares`.

    A rule that changes no noise level is left out. Arguments and errors are those of `calibrate_corrections`.
    """
    noise_scheduler = getattr(pipe, "scheduler", None)
    if schedule.sigmas is None or noise_scheduler is None:
        raise ScheduleError("the noise levels of this pipeline are not known: calibrate with respace=False.")
    if set(schedule.table) - set(schedule.models):
        raise ScheduleError(
            "the steps can only be adjusted for schedules of whole denoisers: calibrate with respace=False."
        )
    fit = run_in_shadow(pipe, calls, schedule, ShadowRegression(closed))
    probe = prepared(noise_scheduler, len(schedule.sigmas))
    respace(probe, schedule.sigmas)  # raises if it cannot take other noise levels
    published = fit.published_shares(schedule.num_ticks)
    rules = {
        "steps as published": published,
        "steps, over the output": fit.published_shares(schedule.num_ticks, over_output=True),
        "steps, a tenth of it": [1 - STRENGTH * (1 - share) for share in published],
        "steps by least squares": fit.least_squares_shares(schedule.num_ticks),
    }
    final = float(probe.sigmas[-1])
    levels = {
        name: torch.tensor(stretched(schedule.sigmas, final, shares), dtype=torch.float64)
        for name, shares in rules.items()
        if min(shares) < 1
    }
    return {
        name: with_corrections(schedule, {**schedule.corrections, RESPACED: sigmas})
        for name, sigmas in levels.items()
    }


def with_corrections(schedule: Schedule, corrections: dict[str, Tensor]) -> Schedule:
    """A schedule with these corrections instead of its own."""
    fitted = schedule.fingerprint() if corrections else None
    return replace(schedule, corrections=corrections, fitted_with=fitted)


def with_hindsight(schedule: Schedule) -> Schedule:
    """A schedule with hindsight, and with the corrections that it has."""
    predictor = {**schedule.predictor, "hindsight": True}
    return with_corrections(replace(schedule, predictor=predictor), dict(schedule.corrections))


def run_in_shadow(pipe: Any, calls: Sequence[Call], schedule: Schedule, fit: R) -> R:
    """Runs a schedule in shadow over the calls, and returns the regression that observed it.

    Raises:
        ScheduleError: the schedule rebuilds the unconditional pass.
    """
    if any(site.endswith(f".{GUIDANCE}") for site in schedule.table):
        raise ScheduleError(
            "a schedule that rebuilds the unconditional pass cannot be corrected: make one without guidance."
        )
    config = ReplayConfig(schedule=schedule)
    with accelerated(pipe, config):
        for call in calls:
            if isinstance(
                fit, SequentialRegression
            ):  # which fits each call on what the ones before have left
                watched_run(pipe, call, fit)
            else:
                key = key_of("shadow", config=config, call=calls_hash([call]), closed=fit.closed)
                fit.add(journal().entry(key, partial(_in_shadow, pipe, call, fit.closed)))
    return fit


def _in_shadow(pipe: Any, call: Call, closed: bool) -> Entry:
    alone = ShadowRegression(closed)
    watched_run(pipe, call, alone)
    return alone.as_entry()
