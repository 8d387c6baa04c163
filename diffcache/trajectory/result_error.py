"""The expected error of a run's result, by the ticks that it computes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffcache.trajectory.gaussian import BETWEEN, regressed
from diffcache.trajectory.kernel import Array
from diffcache.trajectory.process import Process
from diffcache.trajectory.response import SHARES, Response

WINDOW = 4
"""How many computed ticks predict a reused one."""

DOUBT = 1.3
"""A response may be so many times larger or smaller than it is taken for. Without doubt, plans are found that only just stay stable."""

DOUBTED = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
"""Powers of the doubt by which a response is multiplied. With three of them a search finds plans that are stable there and not in between."""

DOUBTED_SHARES = np.array([0.1, 0.25, 0.3, 0.25, 0.1])
"""Of the squared error, at each of these."""


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

    Let x_i be the error of the sample before the i-th computed tick. The denoiser, given that sample, returns an output with the
    error n_i = J_i x_i, where J is its response. Reused ticks are predicted, and corrected later, by weighted sums of outputs:
    this adds S_i, whose square the covariance foretells, and the outputs' errors with the same weights, W_ij in sum, W_ii with the
    influence of the computed tick itself:

        x_{i+1} = x_i + S_i + sum_j W_ij n_j

    So steep weights and long gaps cost more than the covariance alone says, as they do in multistep solvers near their bound of
    stability. Errors differ in the response that they meet (see `Response`): the result is expected for each part of them by itself.

    Args:
        process: of the outputs.
        influence: of each tick's output on the result if all other outputs stay as they are, [ticks].
        pace: what the covariance foretells is multiplied by this, root mean square, [ticks].
        response: of the denoiser.
        largest_ratio: a tick is not corrected if its influence is more than this many times the computed tick's; 0: none is.
        trust: how reused ticks are predicted.
        doubt: of the response.
    """

    def __init__(
        self,
        process: Process,
        influence: Array,
        pace: Array,
        response: Response,
        largest_ratio: float,
        trust: Trust,
        doubt: float = DOUBT,
    ) -> None:
        self.covariance = process.covariance
        self.influence = influence
        self.pace = pace
        self.response = response
        self.doubt = doubt
        self.largest_ratio = largest_ratio
        self.trust = trust
        self.num_ticks = len(influence)
        self._believed = process.believed(trust.roughness)

    def __call__(self, ticks: Sequence[int], doubt: float | None = None) -> float:
        """For these computed ticks, which rise from 0, and this doubt; None: its own."""
        return float(self.of(np.array([ticks]), doubt)[0])

    def of(self, plans: NDArray[np.intp], doubt: float | None = None) -> Array:
        """For several plans of equally many computed ticks, [plans, computed], which rise from 0: [plans]."""
        every, own = np.arange(self.num_ticks), self.influence[plans]
        ends = np.append(plans[:, 1:], np.full_like(plans[:, :1], self.num_ticks), axis=1)
        reused = (plans[:, :, None] < every) & (every < ends[:, :, None])
        predicted = np.where(reused, self.influence, 0.0)
        largest = self.largest_ratio * np.abs(own[:, 1:, None])
        corrected = np.where(np.abs(self.influence) <= largest, predicted[:, :-1], 0.0)
        # Row i of `weights` is what computed ticks have to do with what is added at computed tick i and until the next.
        weights, withdrawn = self._weights(plans, np.stack([predicted, _padded(corrected)]), 0)
        weights[:, 1:] += self._weights(plans, corrected[None], 1)[0] - withdrawn[:, :-1]
        sources = self.pace[plans][:, :, None] * (weights @ (plans[:, :, None] == every) - predicted)
        added = sources @ self.covariance @ np.swapaxes(sources, 1, 2)
        weights += own[:, :, None] * np.eye(plans.shape[1])
        doubt = self.doubt if doubt is None else doubt
        answers = np.concatenate([times * self.response.factors[:, plans] for times in doubt**DOUBTED])
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # what is not finite is refused where it is planned
            felt = _felt(weights, answers)
            found: Array = np.outer(DOUBTED_SHARES, SHARES).ravel() @ (
                (felt[:, :, None] @ added)[:, :, 0] * felt
            ).sum(axis=2)
        return np.where(np.isnan(found), np.inf, found)

    def _weights(self, plans: NDArray[np.intp], sums: Array, ahead: int) -> Array:
        """The weights of computed ticks in sums of outputs: sum i is taken from computed ticks i + 1 - window to i + ahead.

        Args:
            plans: [plans, computed].
            sums: factors of all ticks' outputs, [kinds, plans, sums, ticks].
            ahead: 0, or 1 to correct, which the covariance is fully trusted with.

        Returns:
            [kinds, plans, sums, computed]
        """
        believed, noise = (self.covariance, BETWEEN) if ahead else (self._believed, self.trust.noise)
        window = np.arange(sums.shape[2])[:, None] + np.arange(1 - WINDOW, 1 + ahead)
        is_there = window >= 0
        known = plans[:, np.maximum(window, 0)]
        both = is_there[:, :, None] & is_there[:, None, :]
        among = np.where(both, believed[known[..., :, None], known[..., None, :]], np.eye(WINDOW + ahead))
        towards = np.take_along_axis(sums @ believed, known[None], axis=3) * is_there
        found = np.moveaxis(regressed(among, np.moveaxis(towards, 0, -1), noise), -1, 0)
        in_front = WINDOW - 1  # so many places are of ticks that are not there
        placed = np.zeros((*sums.shape[:3], in_front + plans.shape[1]))
        np.put_along_axis(placed, np.broadcast_to(window + in_front, found.shape), found, axis=3)
        return placed[..., in_front:]


def _padded(rows: Array) -> Array:
    """With one row of zeros more, [plans, rows, ticks]."""
    return np.pad(rows, ((0, 0), (0, 1), (0, 0)))


def _felt(weights: Array, answers: Array) -> Array:
    """What the result has of an error that is added at computed tick i or before the next, [parts, plans, computed].

    Args:
        weights: W, [plans, computed, computed].
        answers: J at the computed ticks, [parts, plans, computed].
    """
    felt = np.ones_like(answers)
    for i in range(answers.shape[-1] - 1, 0, -1):
        rows = slice(i, i + WINDOW + 1)  # later ones have nothing to do with computed tick i
        later = (felt[..., rows] * weights[:, rows, i]).sum(axis=-1)
        felt[..., i - 1] = felt[..., i] + answers[..., i] * later
    return felt
