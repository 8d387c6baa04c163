"""The expected error of a run's result, by the ticks that it computes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffcache.trajectory.gaussian import BETWEEN, regressed
from diffcache.trajectory.kernel import Array
from diffcache.trajectory.process import Process

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

    Let x_i be the error of the sample before the i-th computed tick, as it will show in the result. An error that tick t's
    output makes adds influence[t] * sensitivity[t] times itself. Predicting reused ticks, and correcting them later, adds S_i,
    a weighted sum of the outputs at all ticks whose square the covariance foretells. And the denoiser, given a sample with an
    error, returns an output with an error n_i, of variance `response`^2 E x_i^2 / sensitivity_i^2. What it does to the computed
    tick is in the sensitivity already, but predictions and corrections multiply it by their weights, W_ij in sum:

        x_{i+1} = x_i + S_i + sum_j W_ij n_j

    So steep weights and long gaps cost more than the covariance alone says, as they do in multistep solvers near their bound
    of stability.

    Args:
        process: of the outputs.
        influence: of each tick's output on the result if all other outputs stay as they are, [ticks].
        sensitivity: error of the result over that of the sample, at each tick, [ticks].
        largest_ratio: a tick is not corrected if its influence is more than this many times the computed tick's; 0: none is.
        trust: how reused ticks are predicted.
        response: of the denoiser, see above.
    """

    def __init__(
        self,
        process: Process,
        influence: Array,
        sensitivity: Array,
        largest_ratio: float,
        trust: Trust,
        response: float,
    ) -> None:
        self.covariance = process.covariance
        self.influence = influence
        self.sensitivity = sensitivity
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
        every, sensitivity = np.arange(self.num_ticks), self.sensitivity[plans]
        ends = np.append(plans[:, 1:], np.full_like(plans[:, :1], self.num_ticks), axis=1)
        reused = (plans[:, :, None] < every) & (every < ends[:, :, None])
        predicted = np.where(reused, self.influence, 0.0)
        largest = self.largest_ratio * np.abs(self.influence[plans][:, 1:, None])
        corrected = np.where(np.abs(self.influence) <= largest, predicted[:, :-1], 0.0)
        felt = predicted * self.sensitivity
        # Row i of `weights` is what computed ticks have to do with what is added at computed tick i and until the next.
        weights = self._weights(plans, felt, 0)
        corrections = self._weights(plans, corrected, 1) - self._weights(plans, corrected, 0)
        weights[:, 1:] += sensitivity[:, 1:, None] * corrections
        sources = weights @ (plans[:, :, None] == every) - felt
        added = sources @ self.covariance @ np.swapaxes(sources, 1, 2)
        entering = weights / sensitivity[:, None]
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
    """E x_n^2, from the covariance of what is added and how errors of outputs enter, both [plans, n, n]; x_0 = 0."""
    n = added.shape[-1]
    until = np.tri(n)  # x_{i+1} is the sum of all that was added until i
    known = ((until @ added) * until).sum(axis=2)
    squares = (until @ entering[:, :, 1:]) ** 2  # x_{i+1} to the noise of computed ticks 1 to n - 1
    noise = np.linalg.solve(np.eye(n - 1) - returned**2 * squares[:, :-1], returned**2 * known[:, :-1, None])
    found: Array = known[:, -1] + (squares[:, -1:] @ noise)[:, 0, 0]
    return found
