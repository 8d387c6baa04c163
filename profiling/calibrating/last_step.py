"""Calibrates the correction of a schedule's last step: a regression of what its runs miss on what they compute (see `engine.last_step`)."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from diffcache.engine.observers import Observer
from diffcache.profiling.calibrating.corrections import with_corrections
from diffcache.profiling.recording.calling import Call, accelerated, watched_run
from diffcache.profiling.recording.each_call import of_each_call
from diffcache.profiling.recording.journal import Entry
from diffcache.profiling.recording.trajectories import each_short, full_trajectories
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.schedule_fields import LAST_STEP
from diffcache.schedulers.schedule import INFLUENCE, Schedule

RIDGE = 1e-2
"""Of the regression, as a fraction of the regressors' mean square. Chosen with flux, sd3, pixart and sana in view, where a hundredth of it is as good to 0.1 dB."""


class _Steps(Observer):
    """Keeps what a run begins with, the velocities of its computed ticks, and the sample after its last step.

    Args:
        schedule: that the run follows.
    """

    sees_steps = True

    def __init__(self, schedule: Schedule) -> None:
        self.kept, self.missing = {*schedule.computed_ticks}, schedule.num_ticks
        self.regressors: list[Tensor] = []
        self.result: Tensor | None = None

    def stepping(self, tick: int, seen: Tensor, velocity: Tensor) -> None:
        self.missing -= 1
        if tick == 0:
            self.regressors.append(each_short(seen))
        if tick in self.kept:
            self.regressors.append(each_short(velocity))

    def stepped(self, sample: Tensor) -> None:
        self.result = sample


def with_last_step(pipe: Any, calls: Sequence[Call], schedule: Schedule) -> Schedule | None:
    """A schedule with weights w that minimise, over samples, with the errors e of the sample after its last step,

        sum |e - w_0 x_T - sum_t w_t v_t|^2 / |e|^2      (t: the computed ticks)

    and a ridge penalty. Each sample counts alike, however large its error is. The full runs are those of `covariance_of`; the schedule's runs are drawn. The
    pipeline is plain afterwards.

    Args:
        pipe: a pipeline or a `Loop`.
        calls: arguments of each call.
        schedule: of one whole denoiser.

    Returns:
        None where steps are not seen, as with two denoisers, or nothing is missed, or what a run returned is not finite.

    Raises:
        TargetError: as `full_trajectories`.
    """
    others = {name: tensor for name, tensor in schedule.corrections.items() if name != LAST_STEP}
    # With weights of 0 the noise scheduler's steps are measured, as they will be with the fitted ones.
    plain = with_corrections(schedule, {**others, LAST_STEP: torch.zeros(1 + schedule.num_ticks)})
    full = [entry.tensors.get("result") for entry in full_trajectories(pipe, calls)]
    runs = of_each_call("steps", calls, partial(_run, pipe, plain), schedule=plain)
    total, wanted = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for result, run in zip(full, runs, strict=True):
        if result is None or not run.tensors:
            return None
        regressors, missed = (
            run.tensors["regressors"].double(),
            result.double() - run.tensors["result"].double(),
        )
        size = missed.square().sum(dim=1)
        weighted = regressors / size.clamp_min(torch.finfo(torch.float32).tiny)[:, None]
        total = total + torch.einsum("rsn,qsn->rq", weighted, regressors)
        wanted = wanted + torch.einsum("rsn,sn->r", weighted, missed)
    if not bool(wanted.any() and wanted.isfinite().all() and total.isfinite().all()):
        return None
    penalty = RIDGE * total.diagonal().mean() * torch.eye(len(total), dtype=torch.float64)
    found = torch.linalg.solve(total + penalty, wanted)
    weights = torch.zeros(1 + schedule.num_ticks)
    weights[[0, *(1 + tick for tick in schedule.computed_ticks)]] = found.float()
    influence = runs[-1].facts[INFLUENCE]
    known = {} if influence is None else {INFLUENCE: influence}
    fitted = replace(schedule, predictor={**schedule.predictor, **known})
    return with_corrections(fitted, {**others, LAST_STEP: weights})


def _run(pipe: Any, schedule: Schedule, call: Call) -> Entry:
    """What one run shows: "regressors" [1 + computed, samples, numbers] and "result" [samples, numbers]; nothing where a step was not seen.

    Its facts say what the noise scheduler's steps do (`INFLUENCE`); None where that is unknown.
    """
    steps = _Steps(schedule)
    with accelerated(pipe, ReplayConfig(schedule=schedule)):
        record = watched_run(pipe, call, steps)
    if steps.result is None or steps.missing:
        return Entry({}, {})
    tensors = {"regressors": torch.stack(steps.regressors), "result": each_short(steps.result)}
    return Entry(tensors, {INFLUENCE: record.predictor.get(INFLUENCE)})
