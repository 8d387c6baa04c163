"""Calibrates CacheQuant (arXiv 2503.01323) on torchao: weights, schedule and corrections for one quantised model."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from diffcache.host.compiled import each_uncompiled
from diffcache.host.components import denoisers_of
from diffcache.host.weight_formats import quantization_of, quantizations_of
from diffcache.prediction.correctors import GAIN, SHIFT, WEIGHTS, coefficient_name
from diffcache.profiling.calibrating.corrections import Candidate, run_in_shadow, with_corrections
from diffcache.profiling.calibrating.regression import Regression, SequentialRegression
from diffcache.profiling.recording.calling import Call, accelerated, calls_hash
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.recording.pictures import rewound
from diffcache.profiling.recording.record import record, record_closed_loop
from diffcache.profiling.recording.shares import check_share, ticks_for
from diffcache.profiling.searching.space import HOLD, Space
from diffcache.quantization.folding import can_fold
from diffcache.quantization.weights import quantised, quantising, refold
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.search.cachequant import dps


def calibrate_cachequant(
    pipe: Any,
    calls: Sequence[Call],
    quantize: Any,
    *,
    compute: float = 0.5,
    predictor: Mapping[str, Any] = HOLD,
    keep_original: bool = False,
) -> Schedule:
    """Quantises a pipeline, and makes a schedule that corrects the errors of quantising and of caching.

    Every second call is held out. Each of these steps is fitted to the other calls, on what the earlier steps leave. It is kept
    if it raises the median PSNR of the held-out calls to their full runs in full precision; a correction must also bring most
    samples nearer (`Candidate.beats`). The held-out calls should have other prompts: corrections may fit some prompts only.

    1. The ticks to compute: dynamic programming on the quantised model's features, along its full run and along the run that
       the reuse leads to. Evenly spread ticks are the first candidate.
    2. The quantisation error: the outputs of quantised layers are regressed, channel by channel, on what the plain weights give
       for the same inputs in the cached run. Gain and shift are folded into scales and biases.
    3. The caching error: what is reused is regressed on what would be computed, for each tick and channel. Each tick is fitted
       on runs in which the earlier ticks are corrected.

    Args:
        pipe: a pipeline. It stays quantised, with step 2 folded in, and has no cache afterwards. After an error it is as before.
        calls: keyword arguments of each calibration call, at least two, all with the same number of steps.
        quantize: as for `accelerate`. Step 2 is left out if this is None, or if the pipeline was quantised before and its
            plain weights are gone.
        compute: share of the ticks to compute.
        predictor: predicts reused ticks, as `Schedule.predictor`.
        keep_original: as for `accelerate`.

    Returns:
        A schedule for `accelerate(pipe, schedule)`, or for `accelerate(other, schedule, quantize=quantize)` on a pipeline that
        is not quantised yet. `measured["psnr_calibration"]` has the PSNR of every candidate.

    Raises:
        ConfigError: as `accelerate`; the share of ticks is out of range; or there is only one call.
        TargetError: a call had no denoising loop, or several.
    """
    check_share(compute)
    if len(calls) < 2:
        raise ConfigError("give at least two calls: every second one is held out, to check the result on.")
    fitted, held_out = list(calls[::2]), list(calls[1::2])
    runs = FullRuns(pipe, held_out)
    denoisers = each_uncompiled(denoisers_of(pipe))
    with ExitStack() as undone_on_error:
        if quantize is not None:
            undone_on_error.enter_context(quantising(denoisers, quantize, keep_original))
        first, *others = _schedules(pipe, fitted, compute, predictor)
        best = _Best(runs, *first)
        for name, schedule in others:
            best.offer(name, schedule)
        _correct_weights(pipe, fitted, denoisers, best)
        fit = run_in_shadow(pipe, fitted, best.schedule, SequentialRegression())
        coefficients = {**best.schedule.corrections, **fit.coefficients(best.schedule.num_ticks)}
        best.offer("caching corrected", with_corrections(best.schedule, coefficients))
    return replace(best.schedule, measured={**best.schedule.measured, "psnr_calibration": best.reached})


class _Best:
    """The best of several candidates.

    Args:
        runs: full runs that they are compared with.
        name, schedule: the first candidate.

    Attributes:
        reached: median PSNR of every candidate, in dB.
    """

    def __init__(self, runs: FullRuns, name: str, schedule: Schedule) -> None:
        self._runs = runs
        self._best = Candidate.tried(runs, schedule)
        self.reached = {name: self._best.psnr}

    @property
    def schedule(self) -> Schedule:
        return self._best.schedule

    def offer(self, name: str, schedule: Schedule) -> None:
        """Keeps a candidate if its median is better; one with corrections must also be better on most samples."""
        tried = Candidate.tried(self._runs, schedule)
        self.reached[name] = tried.psnr
        if tried.beats(self._best) if schedule.corrections else tried.psnr > self._best.psnr:
            self._best = tried


def _schedules(
    pipe: Any, calls: Sequence[Call], compute: float, predictor: Mapping[str, Any]
) -> Iterator[tuple[str, Schedule]]:
    """Candidates that compute exactly as many ticks as the share pays for, by name."""
    producer = {"method": "cachequant", "calls": calls_hash(calls)}
    space = Space(record(pipe, calls, basis=predictor["basis"]), predictor)

    def schedule_of(ticks: Tensor) -> Schedule:
        table = ticks.unsqueeze(1).expand(-1, len(space.sites))
        return replace(space.schedule(table, producer), quantization=quantizations_of(pipe))

    count = ticks_for(compute, space.num_ticks)
    even = torch.zeros(space.num_ticks, dtype=torch.bool)
    even[[i * space.num_ticks // count for i in range(count)]] = True
    yield "every so many ticks", schedule_of(even)
    planned = schedule_of(dps(space.errors.sum(0), count))
    yield "dynamic programming", planned
    space = Space(record_closed_loop(pipe, calls, planned), predictor)
    yield "dynamic programming, closed loop", schedule_of(dps(space.errors.sum(0), count))


def _correct_weights(
    pipe: Any, calls: Sequence[Call], denoisers: Mapping[str, nn.Module], best: _Best
) -> None:
    """Offers the best schedule with corrections of its quantised layers; they stay folded in if they are kept."""
    coefficients = _layer_coefficients(pipe, calls, denoisers, best.schedule)
    if not coefficients:
        return
    candidate = with_corrections(best.schedule, coefficients)
    _fold(denoisers, candidate)
    best.offer("weights corrected", candidate)
    _fold(denoisers, best.schedule)


def _fold(denoisers: Mapping[str, nn.Module], schedule: Schedule) -> None:
    """Folds a schedule's corrections of layers into the weights, instead of those that are folded in now."""
    for name, module in denoisers.items():
        if module in quantised:
            refold(module, ReplayConfig(schedule=schedule).repairs(name, quantization_of(module)))


def _layer_coefficients(
    pipe: Any, calls: Sequence[Call], denoisers: Mapping[str, nn.Module], schedule: Schedule
) -> dict[str, Tensor]:
    """The gain and shift of each layer that was quantised here, fp32 [output channels] by name, fitted over cached runs."""
    regressions: dict[str, Regression] = {}
    with ExitStack() as hooks, accelerated(pipe, ReplayConfig(schedule=schedule)):
        for name, module in denoisers.items():
            for path, (layer, weight) in quantised[module].originals.items() if module in quantised else ():
                if can_fold(layer):
                    found = regressions[f"{name}.{path}"] = Regression()
                    hook = layer.register_forward_hook(partial(_compare, original=weight, regression=found))
                    hooks.callback(hook.remove)
        for call in calls if regressions else ():
            pipe(**rewound(call))
    return {
        coefficient_name(site, WEIGHTS, 0, kind): values.float()
        for site, found in regressions.items()
        for kind, values in zip((GAIN, SHIFT), found.fit(), strict=True)
    }


def _compare(
    layer: nn.Module, args: tuple[Tensor], output: Tensor, *, original: Tensor, regression: Regression
) -> None:
    """Adds a quantised layer's output, and what its plain weights give for the same input."""
    bias: Any = layer.bias
    truth = linear(args[0], original.to(output.device), bias)
    shape = (len(output), -1, output.shape[-1])
    regression.add(output.reshape(shape).double(), truth.reshape(shape).double())
