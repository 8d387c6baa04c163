"""ERTACache's calibration (arXiv 2508.21091): a schedule, respaced noise levels, and an affine repair, from a few prompts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from diffcache.correctors import GAIN, SHIFT, channel_dim, coefficient_name
from diffcache.observing import Observer
from diffcache.precision import quantizations_of
from diffcache.profiling.full_runs import FullRuns
from diffcache.profiling.record import Call, accelerated, calls_hash, record, watched_run
from diffcache.profiling.recording import Recording
from diffcache.recipes.replay import RESPACED, ReplayConfig
from diffcache.respacing import stretched
from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.schedule import ALL, Schedule
from diffcache.schedulers.signals import EPS
from diffcache.schedulers.steps import Step

LEAST_SHARE = 0.2
"""Of a reused step's nominal length: shorter ones hardly move."""
SHRINKAGE = 8.0
"""n0 of the fit: coefficients from n independent values shrink to none by n / (n + n0)."""


def calibrate(
    pipe: Any,
    calls: Sequence[Call],
    *,
    compute: float = 0.5,
    closed: bool = False,
    rectify: bool = True,
    respace: bool = True,
) -> Schedule:
    """Makes an ERTACache schedule for runs like these.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: keyword arguments of each calibration call, all with the same number of steps.
        compute: share of ticks to compute; the error bound lambda is the one that gives it.
        closed: fit along the trajectory that reuse leads to, not along the full one.
        rectify, respace: which corrections to fit.

    Returns:
        A schedule that replays like any other: `accelerate(pipe, schedule)`.

    Raises:
        ScheduleError: `respace` with a noise scheduler whose noise levels are not known.
        TargetError: a call has not exactly one denoising loop.
    """
    recording = record(pipe, calls)
    schedule = static_schedule(recording, policy(recording, compute))
    return corrected(pipe, calls, schedule, closed=closed, rectify=rectify, respace=respace)


def policy(recording: Recording, compute: float) -> list[int]:
    """The computed ticks: a tick is computed once the last refresh is further than lambda from it.

    l1rel(s) = mean|r_ref - r_s| / mean|r_s|, not accumulated; the first tick and the last are computed. Lambda is the
    smallest for which at most the share `compute` of all ticks is.
    """
    drift, ticks = recording.leading.drift, recording.num_ticks
    allowed = max(round(compute * ticks), 2)
    for bound in sorted(drift[~drift.isnan()].tolist()):
        computed = _refreshes(drift, bound)
        if len(computed) <= allowed:
            return computed
    return [0, ticks - 1]


def _refreshes(drift: Tensor, bound: float) -> list[int]:
    ticks, computed = len(drift), [0]
    for tick in range(1, ticks):
        if tick == ticks - 1 or float(drift[tick, computed[-1]]) >= bound:
            computed.append(tick)
    return computed


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


def corrected(
    pipe: Any,
    calls: Sequence[Call],
    schedule: Schedule,
    *,
    closed: bool = False,
    rectify: bool = True,
    respace: bool = True,
) -> Schedule:
    """Puts corrections on any static schedule of whole denoisers; each is kept only if it raises the median PSNR of the
    calibration calls to their full runs.

    The affine maps are fitted on the nominal noise levels, the step shares measured on what they leave. Arguments, result
    and errors are those of `calibrate`.
    """
    runs = FullRuns(pipe, calls)
    plain = replace(schedule, corrections={}, fitted_with=None, quantization=quantizations_of(pipe))
    best, quality = plain, runs.psnr(ReplayConfig(schedule=plain))
    if rectify:
        coefficients = _shadowed(pipe, calls, plain, closed).coefficients(schedule.num_ticks)
        best, quality = _better(runs, best, quality, _with(plain, coefficients))
    if respace:
        levels = _levels(pipe, calls, best, closed)
        candidate = _with(plain, {**best.corrections, RESPACED: levels})
        best, quality = _better(runs, best, quality, candidate)
    producer = {**schedule.producer, "corrections": {"calls": calls_hash(calls), "closed": closed}}
    return replace(
        best, producer=producer, measured={**schedule.measured, "psnr_calibration": round(quality, 2)}
    )


def _with(plain: Schedule, corrections: dict[str, Tensor]) -> Schedule:
    return replace(plain, corrections=corrections, fitted_with=plain.fingerprint() if corrections else None)


def _better(runs: FullRuns, best: Schedule, quality: float, candidate: Schedule) -> tuple[Schedule, float]:
    reached = runs.psnr(ReplayConfig(schedule=candidate))
    return (candidate, reached) if reached > quality else (best, quality)


def _levels(pipe: Any, calls: Sequence[Call], schedule: Schedule, closed: bool) -> Tensor:
    """The respaced noise levels: steps are shorter where what is reused is far off."""
    if schedule.sigmas is None:
        raise ScheduleError("the noise levels of this pipeline are not known: calibrate with respace=False.")
    shares = _shadowed(pipe, calls, schedule, closed).shares(schedule.num_ticks)
    return torch.tensor(
        stretched(schedule.sigmas, float(pipe.scheduler.sigmas[-1]), shares), dtype=torch.float64
    )


def _shadowed(pipe: Any, calls: Sequence[Call], schedule: Schedule, closed: bool) -> "Moments":
    """What a schedule's predictions are like, over the calls."""
    moments = Moments(closed=closed)
    with accelerated(pipe, ReplayConfig(schedule=schedule)):
        for call in calls:
            watched_run(pipe, call, moments)
    return moments


@dataclass
class _Sums:
    """Running moments of a prediction u and the truth y, per channel."""

    n: float = 0.0
    u: Tensor | float = 0.0
    y: Tensor | float = 0.0
    uu: Tensor | float = 0.0
    uy: Tensor | float = 0.0
    yy: Tensor | float = 0.0
    calls: int = 0


@dataclass
class Moments(Observer):
    """Compares predictions with the truth as a schedule is run in shadow, keeping sums only.

    Attributes:
        closed: the run goes on with the prediction (closed loop), not with the truth.
    """

    closed: bool = False
    shadow: bool = True
    sums: dict[tuple[str, str, int], _Sums] = field(default_factory=dict)
    ratios: dict[int, list[float]] = field(default_factory=dict)
    _outputs: dict[tuple[str, str], tuple[int, Tensor]] = field(default_factory=dict)

    def predicted(
        self, denoiser: str, step: Step, guess: Sequence[Tensor], truth: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        u, y = guess[0].double(), truth[0].double()
        self._compare(denoiser, step, u, y)
        dims = [d for d in range(u.ndim) if d != channel_dim(u)]
        sums = self.sums.setdefault((denoiser, step.branch, step.tick), _Sums())
        sums.n += u.numel() / u.shape[channel_dim(u)]
        sums.u, sums.y = sums.u + u.sum(dims), sums.y + y.sum(dims)
        sums.uu, sums.uy, sums.yy = (
            sums.uu + (u * u).sum(dims),
            sums.uy + (u * y).sum(dims),
            sums.yy + (y * y).sum(dims),
        )
        sums.calls += len(u)
        return guess if self.closed else truth

    def coefficients(self, ticks: int) -> dict[str, Tensor]:
        """gain and shift of the regression of the truth on the prediction, [ticks, channels] fp32 by name.

        gain = Cov(u, y) / Var(u), shift = mean y - gain * mean u, both shrunk towards no correction. This is the linearised
        ERTACache rectification; its sigmoid cancels.
        """
        found: dict[str, Tensor] = {}
        for (denoiser, branch, tick), sums in self.sums.items():
            gain, shift = _fit(sums)
            for kind, row, empty in ((GAIN, gain, 1.0), (SHIFT, shift, 0.0)):
                name = coefficient_name(denoiser, branch, kind)
                table = found.setdefault(name, torch.full((ticks, len(row)), empty))
                table[tick] = row.float()
        return found

    def computed(
        self, denoiser: str, step: Step, features: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        self._outputs[denoiser, step.branch] = step.tick, outputs[0].double()

    def _compare(self, denoiser: str, step: Step, guess: Tensor, truth: Tensor) -> None:
        """Notes the error of a prediction relative to how far the output has moved since the tick before."""
        tick, before = self._outputs.get((denoiser, step.branch), (-1, truth))
        if tick == step.tick - 1:
            ratio = (guess - truth).abs().mean() / ((truth - before).abs().mean() + EPS)
            self.ratios.setdefault(step.tick, []).append(float(ratio))
        self._outputs[denoiser, step.branch] = step.tick, truth

    def shares(self, ticks: int) -> list[float]:
        """phi = 1 - mean|v~ - v| / mean|v_s - v_{s-1}| of each reused tick, at least 0.2; 1 at the others and the last."""
        shares = [1.0] * ticks
        for tick, ratios in self.ratios.items():
            if tick < ticks - 1:
                shares[tick] = min(max(1 - sum(ratios) / len(ratios), LEAST_SHARE), 1.0)
        return shares


def _fit(sums: _Sums) -> tuple[Tensor, Tensor]:
    """gain and shift per channel, shrunk."""
    u, y = torch.as_tensor(sums.u) / sums.n, torch.as_tensor(sums.y) / sums.n
    variance = torch.as_tensor(sums.uu) / sums.n - u * u
    covariance = torch.as_tensor(sums.uy) / sums.n - u * y
    gain = covariance / (variance + EPS)
    trust = sums.calls / (sums.calls + SHRINKAGE)
    return 1 + trust * (gain - 1), trust * (y - gain * u)
