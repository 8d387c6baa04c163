"""Bisection: the smallest setting at which something holds, where it also holds for all larger ones."""

from collections.abc import Callable


def smallest(holds: Callable[[float], bool], low: float, high: float, halvings: int) -> float:
    """The smallest number at which something holds, to within (high - low) / 2^halvings.

    Args:
        holds: asked once for each halving.
        low: a number at which it need not hold.
        high: a larger number at which it holds; never asked.
        halvings: how often the interval between them is halved.

    Returns:
        The upper end of the last interval.
    """
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
