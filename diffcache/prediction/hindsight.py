"""Hindsight: a computed tick shows how far off the reused ticks before it were, and corrects the result for that."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from diffcache.prediction.predictors import Predictor
from diffcache.schedulers.moments import Moment

LARGEST_RATIO = 3.0
"""A reused tick is not corrected if its influence is more than this many times the computed tick's.

The last step of many schedules is many times shorter than the one before it, and so are single evaluations of singlestep
solvers. There a correction would have to be multiplied by as much, and any error of it too.
"""

DOUBTED = 0.4
"""A correction larger than this, as a fraction of what it corrects, is made smaller, and vanishes as it grows.

So large a surprise says that the curve through the computed ticks is not to be trusted. Our choice, on the
calibration seeds of the testbeds.
"""


class ReusedTick(NamedTuple):
    """A reused tick, and the predictor that gave its value."""

    moment: Moment
    predictor: Predictor


def hindsight_weights(
    reused: Sequence[ReusedTick],
    now: Moment,
    past: Sequence[Moment],
    ratio: Callable[[int, int], float | None],
    curve: Predictor,
) -> list[float]:
    """Weights of features: their weighted sum, added to the output at `now`, corrects the reused ticks before it.

    The value of a reused tick was extrapolated from earlier features. Once the next tick is computed, the curve through
    its feature and the earlier ones interpolates the reused tick, with a remainder several times smaller. But the noise
    scheduler has stepped with the extrapolated value already, and the error would stay in the sample until the end. It is
    corrected by adding to the computed output

        sum_k ratio(k, now) * (interpolated_k - used_k)

    over the reused ticks k, where `ratio` is the influence of tick k's output on the result, over that of this tick's
    output. Predictor-corrector solvers (UniPC, arXiv 2302.04867) correct the sample instead, which a feature cache cannot
    reach.

    Args:
        reused: the ticks that were reused since the newest of `past`.
        now: the tick that has been computed.
        past: moments of the stored features, newest first.
        ratio: the ratio of two ticks' influence; None where it is unknown.
        curve: what is drawn through the computed ticks (see `Predictor.curve`).

    Returns:
        A weight for the feature of `now`, and one for each of `past`.
    """
    known = [now, *past]
    total = [0.0] * len(known)
    for moment, predictor in reused:
        scale = ratio(moment.tick, now.tick)
        if scale is None or abs(scale) > LARGEST_RATIO:
            continue
        for j, weight in enumerate(curve.weights(known[: curve.depth], moment)):
            total[j] += scale * weight
        for j, weight in enumerate(predictor.weights(past[: predictor.depth], moment), start=1):
            total[j] -= scale * weight
    return total


def trusted(change: Tensor, value: Tensor) -> Tensor:
    """A correction, made smaller where its size is surprising: change * min(1, (DOUBTED / size)^4).

    Reads nothing from the device.

    Args:
        change: the correction, any shape.
        value: what was computed, same shape; size = mean |change| / mean |value|.
    """
    size = change.abs().mean() / value.abs().mean().clamp_min(torch.finfo(torch.float32).tiny)
    return change * (DOUBTED / size).pow(4).clamp_max(1)
