"""MeanCache's predictor: the velocity of a reused tick as the average over its step, by the slope of the ticks before it."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from diffcache.prediction.predictors import Predictor
from diffcache.schedulers.moments import Moment
from diffcache.trajectory.kernel import Array


class AverageVelocity(Predictor):
    """MeanCache's rule (arXiv 2601.19961): u_t = v + (s - t) J with J = ((z_t - z_r) / (t - r) - v_r) / (t - r).

    v is the velocity of the tick before t, computed or reused, s is the level after t, r that of `back` ticks before it, and
    z_t - z_r is what the velocities in between add up to by Euler's rule, as in flow matching. So u is a weighted sum of
    velocities of computed ticks. With back = 1 it is v.

    Args:
        levels: noise level of each tick, and the one after the last.
        backs: for each tick, how many ticks it looks back if it is reused; 0 where it is computed.
    """

    def __init__(self, levels: Sequence[float], backs: Sequence[int]) -> None:
        self.levels = list(levels)
        self.backs = list(backs)
        self.depth = self._depth()

    def describe(self) -> dict[str, Any]:
        return {"name": "average velocity", "levels": self.levels, "backs": self.backs}

    def weights(self, past: Sequence[Moment], target: Moment) -> list[float]:
        if target.tick >= len(self.backs):  # the run is longer than was expected
            return [1.0] + [0.0] * (len(past) - 1)
        found: list[float] = self.rows([moment.tick for moment in past], target.tick)[-1].tolist()
        return found

    def rows(self, ticks: Sequence[int], end: int) -> list[Array]:
        """The weights of the velocities at some computed ticks, for each tick from the first of these to `end`."""
        units = dict(zip(ticks, np.eye(len(ticks)), strict=True))
        oldest = min(units)
        made: dict[int, Array] = {}
        for tick in range(oldest, end + 1):
            made[tick] = units[tick] if tick in units else self._average(made, tick, oldest)
        return list(made.values())

    def _average(self, made: dict[int, Array], tick: int, oldest: int) -> Array:
        """u at a tick, from the velocities before it: their weights, not themselves."""
        start = max(tick - max(self.backs[tick], 1), oldest)
        span = self.levels[tick] - self.levels[start]
        moved = sum(self._steps[m] * made[m] for m in range(start, tick))
        slope = (moved / span - made[start]) / span
        average: Array = made[tick - 1] + self._steps[tick] * slope
        return average

    @cached_property
    def _steps(self) -> Array:
        return np.diff(self.levels)

    def _depth(self) -> int:
        """How many computed ticks the sums reach back to, at most."""
        lowest, depth = list[int](), 1
        for tick, back in enumerate(self.backs):
            begin = min(lowest[max(tick - back, 0) : tick], default=0) if back else tick
            lowest.append(begin)
            depth = max(depth, sum(not other for other in self.backs[begin:tick]))
        return depth
