"""CacheQuant on torchao (arXiv 2503.01323): weights, schedule and corrections are made together, on the quantised model."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from diffcache.host.compiled import each_uncompiled
from diffcache.host.components import denoisers_of
from diffcache.host.weight_formats import quantization_of, quantizations_of
from diffcache.prediction.correctors import GAIN, SHIFT, WEIGHTS, coefficient_name
from diffcache.profiling.calibrating.moments import InOrder, Sums
from diffcache.profiling.calibrating.repairs import Candidate, shadowed, with_corrections
from diffcache.profiling.recording.calling import Call, accelerated, calls_hash
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.recording.pictures import rewound
from diffcache.profiling.recording.record import record
from diffcache.profiling.searching.space import HOLD, Space
from diffcache.quantization.folding import can_fold
from diffcache.quantization.weights import quantised, quantising, refold
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.search.cachequant import dps


def calibrate(
    pipe: Any,
    calls: Sequence[Call],
    quantize: Any,
    *,
    compute: float = 0.5,
    predictor: Mapping[str, Any] = HOLD,
    keep_original: bool = False,
) -> Schedule:
    """Quantises a pipeline, and makes a schedule for it that repairs what quantising and caching do.

    One after the other, each on what the earlier ones leave. Every second call is kept apart: each step is fitted to the
    others, and kept only if it raises the median PSNR of those kept apart to their full runs in full precision; a correction
    only if it brings most of their samples nearer (`Candidate.beats`). Give them other prompts: corrections that fit some prompts need
    not fit others.

    1. the ticks to compute: dynamic programming on the quantised model's own features, along its full run and along the
       run that the reuse leads to; evenly spread ticks are the first candidate;
    2. the quantisation error: the outputs of quantised layers are regressed, channel by channel, to what the plain weights
       give for the same inputs, over the cached run; gain and shift are folded into scales and biases;
    3. the caching error: what is reused is regressed to what would have been computed, tick by tick and channel by channel,
       each tick on runs that earlier ticks' corrections have gone into.

    Args:
        pipe: a pipeline. It stays quantised, with 2. folded in, and has no cache afterwards; after an error it is as it was.
        calls: keyword arguments of each calibration call, at least two, all with the same number of steps.
        quantize: as for `accelerate`. Where it is None, or the plain weights of a quantised pipeline are not at hand, 2. is
            left out.
        compute: share of ticks to compute.
        predictor: what fills in at the others, as `Schedule.predictor`.
        keep_original: as for `accelerate`.

    Returns:
        A schedule for `accelerate(pipe, schedule)`, or for `accelerate(other, schedule, quantize=quantize)` on a pipeline that is not
        quantised yet; `measured["psnr_calibration"]` has what every candidate reached.

    Raises:
        ConfigError: as `accelerate` does; a share of ticks out of range; or a single call.
        TargetError: a call has not exactly one denoising loop.
    """
    fitted, judged = calls[::2], calls[1::2]
    if not judged:
        raise ConfigError(
            "a calibration needs at least two calls: every second one is kept apart to judge by."
        )
    best = _Best(FullRuns(pipe, judged))
    denoisers = each_uncompiled(denoisers_of(pipe))
    with ExitStack() as undone_on_error:
        if quantize is not None:
            undone_on_error.enter_context(quantising(denoisers, quantize, keep_original))
        for name, schedule in _schedules(pipe, fitted, compute, predictor):
            best.offer(name, schedule)
        _correct_weights(pipe, fitted, denoisers, best)
        schedule = best.chosen
        moments = shadowed(pipe, fitted, schedule, InOrder())
        coefficients = {**schedule.corrections, **moments.coefficients(schedule.num_ticks)}
        best.offer("caching corrected", with_corrections(schedule, coefficients))
    return replace(best.chosen, measured={**best.chosen.measured, "psnr_calibration": best.reached})


@dataclass
class _Best:
    """Of several candidates, the one nearest to the full runs.

    Attributes:
        reached: what each got, median PSNR in dB.
    """

    runs: FullRuns
    reached: dict[str, float] = field(default_factory=dict)
    _best: Candidate | None = None

    @property
    def chosen(self) -> Schedule:
        """The best so far."""
        assert self._best is not None
        return self._best.schedule

    def offer(self, name: str, schedule: Schedule) -> None:
        """Other ticks have to be better by the median, corrections on most samples too."""
        tried = Candidate.tried(self.runs, schedule)
        self.reached[name] = tried.psnr
        best = self._best
        if best is None or (tried.beats(best) if schedule.corrections else tried.psnr > best.psnr):
            self._best = tried


def _schedules(
    pipe: Any, calls: Sequence[Call], compute: float, predictor: Mapping[str, Any]
) -> Iterator[tuple[str, Schedule]]:
    """Candidates of one cost, by name."""
    interval = max(round(1 / compute), 1)
    producer = {"method": "cachequant", "calls": calls_hash(calls)}
    space = Space(record(pipe, calls, basis=predictor["basis"]), predictor)

    def made(ticks: Tensor) -> Schedule:
        table = ticks.unsqueeze(1).expand(-1, len(space.places))
        return replace(space.schedule(table, producer), quantization=quantizations_of(pipe))

    yield "every so many ticks", made(torch.arange(space.num_ticks) % interval == 0)
    planned = made(dps(space.drifts.sum(0), interval))
    yield "dynamic programming", planned
    space = Space(record(pipe, calls, along=planned), predictor)
    yield "dynamic programming, closed loop", made(dps(space.drifts.sum(0), interval))


def _correct_weights(
    pipe: Any, calls: Sequence[Call], denoisers: Mapping[str, nn.Module], best: _Best
) -> None:
    """Offers the best schedule with what its quantised layers need, which is folded in, and taken out if it does no good."""
    coefficients = _layer_coefficients(pipe, calls, denoisers, best.chosen)
    if not coefficients:
        return
    candidate = with_corrections(best.chosen, coefficients)
    _fold(denoisers, candidate)
    best.offer("weights corrected", candidate)
    _fold(denoisers, best.chosen)


def _fold(denoisers: Mapping[str, nn.Module], schedule: Schedule) -> None:
    """Has a schedule's corrections of layers in the weights, and no others."""
    for name, module in denoisers.items():
        if module in quantised:
            refold(module, ReplayConfig(schedule=schedule).repairs(name, quantization_of(module)))


def _layer_coefficients(
    pipe: Any, calls: Sequence[Call], denoisers: Mapping[str, nn.Module], schedule: Schedule
) -> dict[str, Tensor]:
    """gain and shift of each layer that was quantised here, fp32 [output channels] by name, summed over a cached run."""
    sums: dict[str, Sums] = {}
    with ExitStack() as hooks, accelerated(pipe, ReplayConfig(schedule=schedule)):
        for name, module in denoisers.items():
            for path, (layer, weight) in quantised[module].originals.items() if module in quantised else ():
                if can_fold(layer):
                    found = sums[f"{name}.{path}"] = Sums()
                    hook = layer.register_forward_hook(partial(_compare, original=weight, sums=found))
                    hooks.callback(hook.remove)
        for call in calls if sums else ():
            pipe(**rewound(call))
    return {
        coefficient_name(place, WEIGHTS, 0, kind): values.float()
        for place, found in sums.items()
        for kind, values in zip((GAIN, SHIFT), found.fit(), strict=True)
    }


def _compare(layer: nn.Module, args: tuple[Tensor], output: Tensor, *, original: Tensor, sums: Sums) -> None:
    """Sums up a quantised layer's output beside what its plain weights give for the same input."""
    bias: Any = layer.bias
    truth = linear(args[0], original.to(output.device), bias)
    shape = (len(output), -1, output.shape[-1])
    sums.add(output.reshape(shape).double(), truth.reshape(shape).double())
