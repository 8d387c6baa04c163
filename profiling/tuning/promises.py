"""What a few unseen samples say of all: bounds that hold with a stated confidence, whatever the distribution."""

import math

from torch import Tensor

CONFIDENCE = 0.95
"""How sure a bound is: of a hundred searches on prompts drawn anew, at most five state one that does not hold."""

_STEPS = 60
"""Halvings of the search for a bound: more than a double has digits."""


def least_share(kept: int, of: int) -> float:
    """The share of all samples that keep a target at least, if `kept` of `of` samples do (Clopper and Pearson 1934)."""
    if not kept:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        share = (low + high) / 2
        low, high = (share, high) if _at_least(kept, of, share) <= 1 - CONFIDENCE else (low, share)
    return low


def needed(of: int, share: float) -> int:
    """How many of `of` samples must keep a target, for `share` of all to keep it.

    If even all of them do not suffice (see `fewest`), it is all of them.
    """
    return next((kept for kept in range(1, of) if least_share(kept, of) >= share), of)


def fewest(share: float) -> int:
    """The fewest samples that can show that `share` of all keep a target: 29 for 90 %, 59 for 95 %."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(share)) if share < 1 else 0


def reached(values: Tensor, share: float) -> float | None:
    """What `share` of all samples reach at least, by the order statistics of some [N]; None: they are too few to say."""
    ordered = values.sort().values
    below = sum(1 for k in range(1, len(ordered) + 1) if _at_least(k, len(ordered), 1 - share) >= CONFIDENCE)
    return float(ordered[below - 1]) if below else None


def _at_least(k: int, n: int, p: float) -> float:
    """The chance that k or more of n samples have a property that the share p of all has."""
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))
