"""Hindsight: at a computed tick it is known better what the ticks before it should have been."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from diffcache.prediction.predictors import Polynomial, Predictor
from diffcache.schedulers.moments import Axis, Moment

DEGREE = 2
"""Of the curve through computed outputs; with 1 less is made good, and 3 follows every wiggle."""

LARGEST = 100.0
"""A tick that matters so many times more than the one that could make it good is let be."""


class Owed(NamedTuple):
    """A tick that was reused, and what served it."""

    moment: Moment
    predictor: Predictor


def amends(
    owed: Sequence[Owed],
    now: Moment,
    past: Sequence[Moment],
    ratio: Callable[[int, int], float | None],
    axis: Axis,
) -> list[float]:
    """The weights with which features add up to what makes reused ticks good.

    A reused tick was extrapolated from the features before it. Once the next one is computed, the curve through that and the
    ones before interpolates it, with a several times smaller remainder. The difference has gone into the sample; the noise
    scheduler would carry it to the end. Added to the output that has been computed, times how far that tick's output reaches over
    how far this one's does, it is taken back:

        sum_k ratio(k, now) * (interpolated_k - used_k)

    So do predictor-corrector solvers (UniPC, arXiv 2302.04867) with the sample itself, which a feature cache does not see.

    Args:
        owed: ticks that were reused since the newest of `past`.
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
    for moment, predictor in owed:
        share = ratio(moment.tick, now.tick)
        if share is None or abs(share) > LARGEST:
            continue
        for j, weight in enumerate(curve.weights(known[: curve.depth], moment)):
            total[j] += share * weight
        for j, weight in enumerate(predictor.weights(past[: predictor.depth], moment), start=1):
            total[j] -= share * weight
    return total
