"""The expected error of a run's result, by the ticks that it computes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffcache.trajectory.gaussian import BETWEEN, regressed
from diffcache.trajectory.kernel import Array
from diffcache.trajectory.process import Process

GROWTH = 1.0
"""By how much an error of the sample feeds itself, per unit of influence. See `ResultError`."""

WINDOW = 4
"""How many computed ticks predict a reused one."""


class Trust(NamedTuple):
    """How far a covariance is to be trusted: the larger both are, the less weights extrapolate.

    Attributes:
        noise: see `conditional_weights`; of predictions. Corrections have `BETWEEN`.
        roughness: see `Process.believed`.
    """

    noise: float
    roughness: float


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

    def __call__(self, ticks: Sequence[int], response: float | None = None) -> float:
        """For these computed ticks, which rise from 0, and this response; None: its own."""
        return float(self.of(np.array([ticks]), response)[0])

    def of(self, plans: NDArray[np.intp], response: float | None = None) -> Array:
        """For several plans of equally many computed ticks, [plans, computed], which rise from 0: [plans]."""
        every, influence = np.arange(self.num_ticks), self.influence[plans]
        ends = np.append(plans[:, 1:], np.full_like(plans[:, :1], self.num_ticks), axis=1)
        reused = (plans[:, :, None] < every) & (every < ends[:, :, None])
        predicted = np.where(reused, self.influence, 0.0)
        largest = self.largest_ratio * np.abs(influence[:, 1:, None])
        corrected = np.where(np.abs(self.influence) <= largest, predicted[:, :-1], 0.0)
        # Row i of `weights` is what computed ticks have to do with what is added at computed tick i and until the next.
        weights = self._weights(plans, predicted, 0)
        weights[:, 1:] += self._weights(plans, corrected, 1)
        weights[:, 1:] -= self._weights(plans, corrected, 0)
        sources = weights @ (plans[:, :, None] == every) - predicted
        entering = weights + influence[:, None] * np.eye(plans.shape[1])
        added = sources @ self.covariance @ np.swapaxes(sources, 1, 2)
        return _at_the_end(added, entering, self.response if response is None else response)

    def _weights(self, plans: NDArray[np.intp], sums: Array, ahead: int) -> Array:
        """The weights of computed ticks in sums of outputs: sum i is taken from computed ticks i + 1 - window to i + ahead.

        Args:
            plans: [plans, computed].
            sums: factors of all ticks' outputs, [plans, sums, ticks].
            ahead: 0, or 1 to correct, which the covariance is fully trusted with.

        Returns:
            [plans, sums, computed]
        """
        believed, noise = (self.covariance, BETWEEN) if ahead else (self._believed, self.trust.noise)
        window = np.arange(sums.shape[1])[:, None] + np.arange(1 - WINDOW, 1 + ahead)
        is_there = window >= 0
        known = plans[:, np.maximum(window, 0)]
        both = is_there[:, :, None] & is_there[:, None, :]
        among = np.where(both, believed[known[..., :, None], known[..., None, :]], np.eye(WINDOW + ahead))
        towards = np.take_along_axis(sums @ believed, known, axis=2) * is_there
        found = regressed(among, towards[..., None], noise)[..., 0]
        placed = np.zeros(
            (*sums.shape[:2], WINDOW - 1 + plans.shape[1])
        )  # in front: those that are not there
        np.put_along_axis(placed, np.broadcast_to(window + WINDOW - 1, found.shape), found, axis=2)
        return placed[:, :, WINDOW - 1 :]


def _at_the_end(added: Array, entering: Array, returned: float) -> Array:
    """E x_n^2, from the covariance of what is added and how outputs enter, both [plans, n, n]; x_0 = 0."""
    n = added.shape[-1]
    system = np.repeat((np.eye(n) - np.eye(n, k=-1))[None], len(added), axis=0)
    system[:, :, :-1] += GROWTH * entering[:, :, 1:]
    response = np.linalg.inv(system)  # x_{i+1} to what is added
    known = ((response @ added) * response).sum(axis=2)
    squares = (response @ entering[:, :, 1:]) ** 2  # x_{i+1} to the noise of computed ticks 1 to n - 1
    noise = np.linalg.solve(np.eye(n - 1) - returned**2 * squares[:, :-1], returned**2 * known[:, :-1, None])
    found: Array = known[:, -1] + (squares[:, -1:] @ noise)[:, 0, 0]
    return found
