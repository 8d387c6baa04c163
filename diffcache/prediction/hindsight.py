"""Hindsight: once a tick is computed, it is known better what the reused ticks before it should have been."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from diffcache.prediction.predictors import Polynomial, Predictor
from diffcache.schedulers.moments import Axis, Moment

DEGREE = 2
"""Degree of the curve through computed outputs. Degree 1 corrects less, and degree 3 follows noise."""

LARGEST = 100.0
"""A reused tick whose influence is more than so many times that of the computed tick is not corrected there."""


class ReusedTick(NamedTuple):
    """A tick that was reused, and the predictor that served it."""

    moment: Moment
    predictor: Predictor


def hindsight_weights(
    reused: Sequence[ReusedTick],
    now: Moment,
    past: Sequence[Moment],
    ratio: Callable[[int, int], float | None],
    axis: Axis,
) -> list[float]:
    """The weights of a sum of features that, added to the output at `now`, corrects the reused ticks before it.

    A reused tick was extrapolated from the features before it. When the next tick is computed, the curve through it and
    the features before interpolates the reused tick, with a remainder several times smaller. The sample already contains
    the difference, and the noise scheduler would carry it to the end. It is taken back by adding to the computed output

        sum_k ratio(k, now) * (interpolated_k - used_k)

    where the ratio is how much tick k's output moves the result, over how much this tick's output does. Predictor-corrector
    solvers do the same with the sample (UniPC, arXiv 2302.04867), which a feature cache does not see.

    Args:
        reused: ticks that were reused since the newest of `past`.
        now: the tick that has been computed.
        past: moments of the stored features, newest first.
        ratio: of two ticks' influence on the result; None where it is unknown.
        axis: what the curve is drawn over.

    Returns:
        A weight for the feature of `now`, and one for each of `past`.
    """
    known = [now, *past]
    curve = Polynomial(DEGREE, axis)
    total = [0.0] * len(known)
    for moment, predictor in reused:
        share = ratio(moment.tick, now.tick)
        if share is None or abs(share) > LARGEST:
            continue
        for j, weight in enumerate(curve.weights(known[: curve.depth], moment)):
            total[j] += share * weight
        for j, weight in enumerate(predictor.weights(past[: predictor.depth], moment), start=1):
            total[j] -= share * weight
    return total
