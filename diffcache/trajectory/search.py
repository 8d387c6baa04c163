"""Search: among all plans of as many computed ticks, one whose expected error is small: first how gaps change over the run, then each tick."""

from collections.abc import Callable, Collection, Sequence
from functools import cache

import numpy as np
from numpy.polynomial.legendre import legvander

from diffcache.trajectory.error_model import WINDOW, ErrorModel, TickArray
from diffcache.trajectory.kernel import Array

DEGREE = 3
"""The logarithm of the gap between computed ticks is a polynomial of this degree over the run."""

TILTS, BENDS = (-1.0, -0.5, -0.05, 0.05, 0.5, 1.0), (-1.0, -0.5, 0.0, 0.5)
"""Factors of its line and of its parabola, Legendre polynomials, that are all tried. No tilt is 0: with a slight slope rounding puts
equal gaps next to each other."""

CHANGES = (0.25, 0.12)
"""Steps by which each factor is changed around the best of these."""

STRIDES = (4, 2, 1)
"""By how many ticks computed ticks are moved in search of a better plan, one after the other."""

ROUNDS = 30
"""At most so many rounds of changes."""

EXACT = 1e-9
"""Gaps that are whole but for the rounding of floating-point numbers count as whole."""

TINY = float(np.finfo(float).tiny)
"""So that nothing is divided by 0."""

Rounding = Callable[[Array], TickArray]
"""See `neighbours` and `in_place`."""


def neighbours(gaps: Array) -> TickArray:
    """Gaps of at least 1, [plans, gaps], as whole numbers with the same sum: those with the largest remainders are rounded up.

    Where they change smoothly, equal ones are neighbours. Errors grow slower over these than over long and short ones that take turns.
    """
    down = np.floor(gaps + EXACT)
    order = (down - gaps).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    more = np.rint(gaps.sum(axis=1, keepdims=True)) - down.sum(axis=1, keepdims=True)
    whole: TickArray = (down + (order < more)).astype(np.intp)
    return whole


def in_place(gaps: Array) -> TickArray:
    """Gaps of at least 1, [plans, gaps], as whole numbers with the same sum: each ends at the tick that is nearest."""
    ends = np.floor(gaps.cumsum(axis=1) + 0.5 + EXACT)
    whole: TickArray = np.diff(ends, prepend=0, axis=1).astype(np.intp)
    return whole


def spread_anew(
    error: ErrorModel,
    start: Sequence[int],
    at_start: float,
    forced: Collection[int],
    whole: Rounding = neighbours,
) -> list[int]:
    """Computed ticks whose gaps change smoothly over the run, chosen so that the expected error is small.

    Args:
        error: of the result.
        start: as many computed ticks, by rising number. They are kept where none are expected to be better.
        at_start: the error that is expected of these.
        forced: ticks among them that stay where they are.
        whole: makes gaps whole numbers.
    """

    known = {tuple(start): at_start}

    def best_of(factors: Array) -> tuple[float, Array, tuple[int, ...]]:
        plans = [*map(tuple, with_gaps(factors, start, forced, error.num_ticks, whole).tolist())]
        if new := [*{*plans} - known.keys()]:  # rounding makes many alike
            known.update(zip(new, error.of(np.array(new)).tolist(), strict=True))
        best = min(range(len(plans)), key=lambda i: known[plans[i]])
        return known[plans[best]], factors[best], plans[best]

    least, middle, ticks = best_of(np.array([(tilt, bend, 0.0) for tilt in TILTS for bend in BENDS]))
    steps = np.concatenate([change * np.eye(DEGREE) for change in (*CHANGES, *np.negative(CHANGES))])
    for _ in range(ROUNDS):
        found = best_of(middle + steps)
        if not found[0] < least:
            break
        least, middle, ticks = found
    return list(ticks) if least < at_start else list(start)


def with_gaps(
    factors: Array,
    start: Sequence[int],
    forced: Collection[int],
    num_ticks: int,
    whole: Rounding = neighbours,
) -> TickArray:
    """As many computed ticks as in `start`, with gaps that change smoothly from the first one that may move to the last.

    Args:
        factors: of the Legendre polynomials of degree 1 to `DEGREE`, whose sum is the logarithm of a gap, [plans, DEGREE].
        start: the computed ticks, by rising number.
        forced: ticks among them that stay where they are; the very first is one of these.
        num_ticks: length of the run.
        whole: makes gaps whole numbers.

    Returns:
        [plans, computed]
    """
    plans = np.tile(np.array(start, dtype=np.intp), (len(factors), 1))
    free = [i for i, tick in enumerate(start) if tick not in forced]
    if not free:
        return plans
    span = slice(free[0], free[-1] + 1)
    before, after = start[span.start - 1], ([*start, num_ticks])[span.stop]
    polynomials = _polynomials(span.stop - span.start + 1)
    gaps = whole(_in_sum(np.exp(factors @ polynomials), after - before))
    plans[:, span] = before + gaps.cumsum(axis=1)[:, :-1]
    return through(plans, set(start[span]) & {*forced})


@cache
def _polynomials(gaps: int) -> Array:
    """The Legendre polynomials of degree 1 to `DEGREE` at each gap of a run, [DEGREE, gaps]."""
    return np.asarray(legvander(np.linspace(-1, 1, gaps), DEGREE)[:, 1:].T, dtype=np.float64)


def _in_sum(gaps: Array, length: int) -> Array:
    """Gaps in the same proportions, [plans, gaps], `length` in sum; those that would be shorter than 1 are 1."""
    above = np.maximum(gaps * length / gaps.sum(axis=1, keepdims=True) - 1, 0)
    spare = length - gaps.shape[1]
    found: Array = 1 + above * spare / np.maximum(above.sum(axis=1, keepdims=True), TINY)
    return found


def through(plans: TickArray, ticks: Collection[int]) -> TickArray:
    """Plans, [plans, computed], in each of which the computed ticks nearest to some ticks are moved there."""
    distances = np.abs(plans[:, :, None] - np.array(sorted(ticks), dtype=np.intp)).astype(float)
    each = np.arange(len(plans))
    for i, tick in enumerate(sorted(ticks)):
        nearest = distances[:, :, i].argmin(axis=1)
        plans[each, nearest] = tick
        distances[each, nearest] = np.inf
    return np.sort(plans, axis=1)


def moved(error: ErrorModel, start: Sequence[int], forced: Collection[int], together: int = 1) -> list[int]:
    """Moves computed ticks until no move makes the expected error smaller.

    From evenly spaced ticks it ends at plans that are hardly better: where many ticks should lie closer, each is in the way of the others.

    Args:
        error: of the result.
        start: the computed ticks to start with, by rising number.
        forced: ticks among them that are not moved.
        together: up to so many neighbours are moved at once. More find better plans, in more time.
    """
    ticks, least = np.array(start), error(start)
    free = [i for i, tick in enumerate(start) if tick not in forced]
    for stride in STRIDES:
        for _ in range(ROUNDS):
            tried = _moves(ticks, free, stride, together, error.num_ticks)
            if not len(tried):
                break
            found = error.of(tried)
            if not found.min() < least:
                break
            combined = _together(ticks, tried[found.argsort()][: int((found < least).sum())])
            both = np.stack([tried[found.argmin()], combined])
            errors = error.of(both)
            ticks, least = both[errors.argmin()], float(errors.min())
    return [int(tick) for tick in ticks]


def _moves(ticks: TickArray, free: Sequence[int], stride: int, together: int, num_ticks: int) -> TickArray:
    """All plans in which some neighbouring computed ticks lie `stride` ticks earlier or later, [plans, computed]."""
    one = np.eye(len(ticks), dtype=np.intp)[free]
    lengths = range(1, min(together, len(free)) + 1)
    runs = [
        np.sum([one[i : len(free) - length + 1 + i] for i in range(length)], axis=0) for length in lengths
    ]
    steps = stride * np.concatenate([one[:0], *runs])
    plans: TickArray = np.concatenate([ticks - steps, ticks + steps])
    return plans[(np.diff(plans, prepend=-1, append=num_ticks) > 0).all(axis=1)]


def _together(ticks: TickArray, better: TickArray) -> TickArray:
    """All moves of better plans at once, best first, that are too far apart to matter to each other."""
    plan, taken = ticks.copy(), list[int]()
    for other in better:
        changed = np.flatnonzero(other != ticks).tolist()
        if all(abs(i - j) > WINDOW for i in changed for j in taken):
            plan[changed] = other[changed]
            taken += changed
    return plan
