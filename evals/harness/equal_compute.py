"""Controls at exactly another method's compute: interpolated between settings of theirs that compute a little less and more."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from diffcache.evals.errors import EvaluationError

LARGEST = 64.0
"""The largest threshold that is tried."""

HALVINGS = 6
"""How often the interval that contains the threshold is halved."""


class Point(NamedTuple):
    """What a setting computes, as a share or in ticks, and what it gives."""

    compute: float
    value: float


def interpolated(points: Iterable[Point], compute: float) -> float:
    """The value at a compute, linear between the two nearest points around it.

    Raises:
        EvaluationError: no point computes as little, or none as much.
    """
    points = list(points)
    below = max((p for p in points if p.compute <= compute), default=None)
    above = min((p for p in points if p.compute >= compute), default=None)
    if below is None or above is None:
        raise EvaluationError(f"no setting computes {'less' if below is None else 'more'} than {compute:g}.")
    if below.compute == above.compute:
        return below.value
    weight = (compute - below.compute) / (above.compute - below.compute)
    return below.value + weight * (above.value - below.value)


def at_compute(measured: Callable[[float], Point], compute: float) -> float:
    """What an adaptive method gives at a compute: its threshold is halved in until two settings lie around it.

    Args:
        measured: from a threshold to the point it leads to; a larger threshold computes less.
        compute: as in the points.

    Raises:
        EvaluationError: the method computes more at the largest threshold.
    """
    low, high = 0.0, 1.0
    points = [measured(high)]
    while points[-1].compute > compute and high < LARGEST:
        low, high = high, 2 * high
        points.append(measured(high))
    for _ in range(HALVINGS):
        if points[-1].compute == compute:
            break
        middle = (low + high) / 2
        points.append(measured(middle))
        low, high = (middle, high) if points[-1].compute > compute else (low, middle)
    if max(point.compute for point in points) < compute:
        points.append(measured(low))
    return interpolated(points, compute)
