"""Search: among all plans of as many computed ticks, one whose expected error is small: first how dense they lie, then each of them."""

from collections.abc import Collection, Sequence

import numpy as np

from diffcache.trajectory.kernel import Array
from diffcache.trajectory.result_error import WINDOW, ResultError, Ticks

KNOTS = 4
"""The logarithm of the density is a line between so many places of the run."""

CHANGES = (1.0, 0.5, 0.25)
"""Of the logarithm at a knot, in search of a better density, one after the other."""

STRIDES = (4, 2, 1)
"""By how many ticks computed ticks are moved in search of a better plan, one after the other."""

ROUNDS = 30
"""Of changes of one size, at most."""


def spread_anew(error: ResultError, start: Sequence[int], forced: Collection[int]) -> list[int]:
    """Computed ticks that lie closer in some parts of the run, and farther apart in others, as makes the expected error small.

    Args:
        error: of the result.
        start: the computed ticks to start with, by rising number.
        forced: ticks among them that stay where they are.
    """
    logs, ticks, least = np.zeros(KNOTS), list(start), error(start)
    directions = np.concatenate([np.eye(KNOTS), np.linspace(-1, 1, KNOTS)[None]])
    for change in CHANGES:
        for _ in range(ROUNDS):
            tried = logs + change * np.concatenate([directions, -directions])
            plans = with_density(tried, start, forced, error.num_ticks)
            errors = error.of(plans)
            best = int(errors.argmin())
            if not errors[best] < least:
                break
            logs, ticks, least = tried[best], plans[best].tolist(), float(errors[best])
    return ticks


def with_density(logs: Array, start: Sequence[int], forced: Collection[int], num_ticks: int) -> Ticks:
    """The computed ticks `start`, moved so that they lie exp(logs) times as close.

    Args:
        logs: at `KNOTS` places of the run, of each plan, [plans, KNOTS].
        start: the computed ticks to start with, by rising number.
        forced: ticks among them that stay where they are; the very first is one of these.
        num_ticks: length of the run.

    Returns:
        [plans, computed]
    """
    plans = np.tile(np.array(start, dtype=np.intp), (len(logs), 1))
    free = np.flatnonzero(~np.isin(start, list(forced)))
    if not len(free):
        return plans
    span = slice(free[0], free[-1] + 1)
    before, after = start[span.start - 1], ([*start, num_ticks])[span.stop]
    ticks = np.arange(before, after + 1)
    places = np.linspace(0, KNOTS - 1, len(ticks) - 1)
    between = np.stack([np.interp(places, np.arange(KNOTS), knot) for knot in np.eye(KNOTS)])
    passed = np.pad(np.cumsum(np.exp(logs @ between), axis=1), ((0, 0), (1, 0)))
    wanted = passed[:, -1:] * (plans[:, span] - before) / (after - before)
    placed = np.stack([np.interp(want, has, ticks) for want, has in zip(wanted, passed, strict=True)])
    plans[:, span] = through(
        _apart(np.rint(placed).astype(np.intp), before, after), set(start[span]) & {*forced}
    )
    return plans


def through(plans: Ticks, ticks: Collection[int]) -> Ticks:
    """Plans, [plans, computed], in each of which the computed ticks nearest to some ticks are moved there."""
    distances = np.abs(plans[:, :, None] - np.array(sorted(ticks), dtype=np.intp)).astype(float)
    each = np.arange(len(plans))
    for i, tick in enumerate(sorted(ticks)):
        nearest = distances[:, :, i].argmin(axis=1)
        plans[each, nearest] = tick
        distances[each, nearest] = np.inf
    return np.sort(plans, axis=1)


def _apart(ticks: Ticks, before: int, after: int) -> Ticks:
    """The ticks, which do not fall, moved so that each differs from the next and all lie between two others, [plans, ticks]."""
    order = np.arange(ticks.shape[1])
    rising: Ticks = np.maximum.accumulate(np.maximum(ticks, before + 1) - order, axis=1) + order
    return np.minimum(rising, after - len(order) + order)


def moved(error: ResultError, start: Sequence[int], forced: Collection[int], together: int = 1) -> list[int]:
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


def _moves(ticks: Ticks, free: Sequence[int], stride: int, together: int, num_ticks: int) -> Ticks:
    """All plans in which some neighbouring computed ticks lie `stride` ticks earlier or later, [plans, computed]."""
    one = np.eye(len(ticks), dtype=np.intp)[free]
    lengths = range(1, min(together, len(free)) + 1)
    runs = [
        np.sum([one[i : len(free) - length + 1 + i] for i in range(length)], axis=0) for length in lengths
    ]
    steps = stride * np.concatenate([one[:0], *runs])
    plans: Ticks = np.concatenate([ticks - steps, ticks + steps])
    return plans[(np.diff(plans, prepend=-1, append=num_ticks) > 0).all(axis=1)]


def _together(ticks: Ticks, better: Ticks) -> Ticks:
    """All moves of better plans at once, best first, that are too far apart to matter to each other."""
    plan, taken = ticks.copy(), list[int]()
    for other in better:
        changed = np.flatnonzero(other != ticks).tolist()
        if all(abs(i - j) > WINDOW for i in changed for j in taken):
            plan[changed] = other[changed]
            taken += changed
    return plan
