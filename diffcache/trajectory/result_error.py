"""The expected error of a run's result, by the ticks that it computes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffcache.trajectory.gaussian import BETWEEN, conditional_weights
from diffcache.trajectory.kernel import Array
from diffcache.trajectory.process import Process

GROWTH = 1.0
"""By how much an error of the sample feeds itself, per unit of influence. See `ResultError`."""

WINDOW = 4
"""How many computed ticks predict a reused one."""

Ticks = tuple[int, ...]


class Trust(NamedTuple):
    """How far a covariance is to be trusted: the larger both are, the less weights extrapolate.

    Attributes:
        noise: see `conditional_weights`; of predictions. Corrections have `BETWEEN`.
        roughness: see `Process.believed`.
    """

    noise: float
    roughness: float


class Gap(NamedTuple):
    """What the ticks reused between two computed ones do to the result.

    `predicted` and `corrected` are weighted sums of the outputs at all ticks, [ticks].

    Attributes:
        predicted: what predicting them adds.
        from_past: what the error of each output that predicts adds, [window].
        corrected: what correcting them at the computed tick after them adds to that.
        from_known: what the error of each of these outputs adds, and of that tick's, [window + 1].
    """

    predicted: Array
    from_past: Array
    corrected: Array
    from_known: Array


class ResultError:
    """The expected squared error of a result, by computed ticks.

    The result changes by influence[t] times the error of tick t's output. Let x_i be the error of the sample before the i-th
    computed tick. Predicting reused ticks, and correcting them later, adds S_i, a weighted sum of the outputs at all ticks whose
    square the covariance foretells. The denoiser, given a sample with an error, returns an output with an error: a part
    that goes along with x_i and makes it grow, and a part n_i in any direction, of variance `response`^2 E x_i^2:

        x_{i+1} = x_i + S_i + sum_j B_ij (n_j - growth x_j)

    B_ij is how much the output at computed tick j enters there: the step itself, predictions and corrections. So steep weights
    and long gaps cost more than the covariance alone says, as they do in multistep solvers near their bound of stability.

    Args:
        process: of the outputs.
        influence: of each tick's output on the result, [ticks].
        largest_ratio: a tick is not corrected if its influence is more than this many times the computed tick's; 0: none is.
        trust: how reused ticks are predicted.
        response: of the denoiser, see above.
    """

    def __init__(
        self, process: Process, influence: Array, largest_ratio: float, trust: Trust, response: float
    ) -> None:
        self.covariance = process.covariance
        self.influence = influence
        self.largest_ratio = largest_ratio
        self.trust = trust
        self.response = response
        self.num_ticks = len(influence)
        self._believed = process.believed(trust.roughness)
        self._gaps: dict[tuple[Ticks, int], Gap] = {}

    def __call__(self, ticks: Sequence[int]) -> float:
        """For these computed ticks, which rise from 0."""
        n = len(ticks)
        sources, entering = np.zeros((n, self.num_ticks)), np.diag(self.influence[list(ticks)])
        for i in range(n):
            first = max(0, i + 1 - WINDOW)
            gap = self._gap(tuple(ticks[first : i + 1]), ticks[i + 1] if i + 1 < n else self.num_ticks)
            sources[i] += gap.predicted
            entering[i, first : i + 1] += gap.from_past
            if i + 1 < n:
                sources[i + 1] += gap.corrected
                entering[i + 1, first : i + 2] += gap.from_known
        return float(self._at_the_end(sources @ self.covariance @ sources.T, entering))

    def _at_the_end(self, sources: Array, entering: Array) -> float:
        """E x_n^2, from the covariance of what is added [n, n] and how outputs enter [n, n]; x_0 = 0."""
        n = len(entering)
        system = np.eye(n) - np.eye(n, k=-1)
        system[:, :-1] += GROWTH * entering[:, 1:]
        response = np.linalg.inv(system)  # x_{i+1} to what is added
        added = ((response @ sources) * response).sum(axis=1)
        squares = (response @ entering[:, 1:]) ** 2  # x_{i+1} to the noise of computed ticks 1 to n - 1
        noise = np.linalg.solve(
            np.eye(n - 1) - self.response**2 * squares[:-1], self.response**2 * added[:-1]
        )
        return float(added[-1] + squares[-1] @ noise)

    def _gap(self, past: Ticks, end: int) -> Gap:
        key = past, end
        if key not in self._gaps:
            self._gaps[key] = self._new_gap(list(past), end)
        return self._gaps[key]

    def _new_gap(self, past: list[int], end: int) -> Gap:
        predicted, corrected = np.zeros(self.num_ticks), np.zeros(self.num_ticks)
        from_past, from_known = np.zeros(len(past)), np.zeros(len(past) + 1)
        reused = np.arange(past[-1] + 1, end)
        if len(reused):
            influence = self.influence[reused]
            used = self._weights(past, reused, self.trust.noise)
            from_past = used @ influence
            predicted[past] = from_past
            predicted[reused] = -influence
            if end < self.num_ticks:
                chosen = np.abs(influence) <= self.largest_ratio * abs(self.influence[end])
                if chosen.any():
                    known = [*past, end]
                    from_known = self._weights(known, reused[chosen], BETWEEN) @ influence[chosen]
                    from_known[:-1] -= used[:, chosen] @ influence[chosen]
                    corrected[known] = from_known
        return Gap(predicted, from_past, corrected, from_known)

    def _weights(self, known: list[int], wanted: NDArray[np.intp], noise: float) -> Array:
        return conditional_weights(self._believed, known, wanted.tolist(), noise)
