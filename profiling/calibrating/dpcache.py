"""Calibrates DPCache (arXiv 2602.22654): the cheapest path through full runs, by the errors of its own forecasts."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from diffcache.prediction.predictors import Taylor
from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.each_call import mean_over_calls, of_each_call
from diffcache.profiling.recording.features import features_of
from diffcache.profiling.recording.frozen import frozen
from diffcache.profiling.recording.journal import Entry
from diffcache.profiling.recording.shares import TooLittle, check_share, ticks_for
from diffcache.recipes.dpcache import DPCacheConfig
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.moments import Moment
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.search.path import cheapest_path

FIRST = 3
"""So many ticks at the start are computed, as published."""

REACH = 0.3
"""The longest jump, as a share of the run, as published."""

AHEAD = 0.8
"""The feature after the run's end is made up: this share is forecast, and the rest the mean of the last ones. As published."""


def calibrate_dpcache(pipe: Any, calls: Sequence[Call], compute: float = 0.5) -> Schedule:
    """Makes a DPCache schedule for runs like these.

    Args:
        pipe: a pipeline with one denoiser; it is plain afterwards.
        calls: keyword arguments of each calibration call, all with the same number of steps. The authors take ten, and find one enough.
        compute: share of the ticks to compute: exactly as many as it pays for.

    Raises:
        TooLittle: the share does not pay for a path whose jumps are all short enough.
        ConfigError: no share, no call, calls with different numbers of steps, or runs that are too short to forecast in.
        TargetError: a call has no denoising loop or several, or the pipeline has several denoisers.
    """
    check_share(compute)
    costs = measured_costs(pipe, calls)
    return schedule_on(pipe, calls[0], costs, compute)


def measured_costs(pipe: Any, calls: Sequence[Call]) -> Tensor:
    """The mean of the calls' cost tensors (see `costs_of`)."""

    def measured(call: Call) -> Entry:
        features, _ = features_of(pipe, call, UniformConfig(interval=1, site="stack", basis="output"))
        return Entry({"costs": costs_of(features, DPCacheConfig().order)}, {})

    entries = of_each_call("dpcache", calls, measured)
    return mean_over_calls([entry.tensors["costs"] for entry in entries])


def schedule_on(pipe: Any, call: Call, costs: Tensor, compute: float) -> Schedule:
    """The schedule of the cheapest path; of a run of this call.

    Raises:
        TooLittle: the share does not pay for a path whose jumps are all short enough.
    """
    count = ticks_for(compute, len(costs) - 1)
    try:
        ticks = cheapest_path(costs, count, FIRST)
    except ConfigError as error:
        raise TooLittle(
            f"dpcache: compute={compute:.3g} is too little here: its jumps are at most {REACH:.0%} of a run."
        ) from error
    return frozen(pipe, call, DPCacheConfig(ticks=tuple(ticks)))


def costs_of(features: Tensor, order: int) -> Tensor:
    """The path-aware cost tensor, [T + 1, T + 1, T + 1]; infinite where there is no jump.

    C[i, j, k] is the sum over the ticks after j, up to k itself, of the mean absolute error of the Taylor expansion at j. Its
    differences are those between j and i, and between i and the ticks just before it.

    Args:
        features: of the stack at each tick, [T, elements].
        order: of the expansion.

    Raises:
        ConfigError: there are not as many ticks as the expansion needs.
    """
    end = len(features)
    if end <= order:
        raise ConfigError(f"dpcache: runs of {end} ticks are too short: take {order + 1} steps at least.")
    reach, taylor = max(int(REACH * end), 1), Taylor(order)

    def forecast(past: Sequence[int], ticks: Sequence[int]) -> Tensor:
        moments = [Moment(tick) for tick in past]
        weights = torch.tensor([taylor.weights(moments, Moment(tick)) for tick in ticks])
        return weights @ features[list(past)]

    last = range(end - 1, end - 2 - order, -1)
    beyond = AHEAD * forecast(last, [end])[0] + (1 - AHEAD) * features[list(last)].mean(dim=0)
    truth = torch.cat([features, beyond[None]])
    costs = torch.full((end + 1, end + 1, end + 1), torch.inf)
    for tick in range(order):
        costs[: tick + 1, tick, tick + 1] = 0
    for tick in range(order, end):
        reused = range(tick + 1, min(tick + reach, end) + 1)
        for anchor in range(max(order - 1, tick - reach), tick):
            past = [tick, *range(anchor, anchor - order, -1)]
            errors = (forecast(past, reused) - truth[list(reused)]).abs().mean(dim=1)
            costs[anchor, tick, list(reused)] = errors.cumsum(dim=0)
    return costs
