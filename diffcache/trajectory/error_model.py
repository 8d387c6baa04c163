"""The expected error of a run's result, by the ticks that it computes."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffcache.trajectory.gaussian import BETWEEN, precision
from diffcache.trajectory.kernel import Array
from diffcache.trajectory.process import Process
from diffcache.trajectory.response import Response

WINDOW = 4
"""How many computed ticks predict a reused one."""

STIFFER = 2.0
"""Where the response was not measured, its spread may be so many times as large. With less, plans of few ticks only just stay stable."""

TickArray = NDArray[np.intp]


class Caution(NamedTuple):
    """How careful predictions are. The larger both numbers are, the nearer a prediction is to holding the newest output.

    Attributes:
        noise: see `conditional_weights`; of predictions. Corrections have `BETWEEN`.
        roughness: see `Process.believed`.
    """

    noise: float
    roughness: float


class Belief(NamedTuple):
    """What weights are worked out with, of one plan or of each.

    Attributes:
        covariance: [plans or 1, ticks, ticks].
        noise: see `conditional_weights`, [plans or 1].
    """

    covariance: Array
    noise: Array


class Corrections(NamedTuple):
    """The corrections (hindsight) that computed ticks get. They don't depend on how reused ticks were predicted.

    Attributes:
        ratios: of each tick's influence on the result over the computed tick's, [plans, computed - 1, ticks]; 0 where nothing is corrected.
        known: the weights of computed ticks in what the ticks before should have been, [plans, computed - 1, computed].
    """

    ratios: Array
    known: Array


class ErrorModel:
    """The expected error of a result, by computed ticks: root mean square over its elements.

    Let F be the velocities of the full run, and n the errors of those that the denoiser returns at computed ticks. The noise scheduler
    gets weighted sums of F + n: at a reused tick the prediction, at a computed tick what was returned and the corrections of ticks before
    it. With these weights W, and S = W - 1, the velocities that it gets have the errors E, and its steps make of them errors x of the
    samples and of the result. The denoiser, given such a sample, answers by its mean response R and its spread s (see `Response`), with random
    directions e of variance one:

        E = S F + W n,   x = B E (B: the influence),   n = R x + s |x| e at computed ticks

    What is random is new at each computed tick, so expected squares add up, from one computed tick to the next: with the gains
    H = (1 - P R)^-1 P, where P = B W, and the covariance G of F,

        <x_i, x_i> = ((1 + H R) B S G S^T B^T (1 + H R)^T)_ii + sum_k H_ik^2 s_k^2 <x_k, x_k>

    The result is one more row of B. Where the response was not measured, the error is the mean of two: with R smaller by a standard deviation of denoisers
    (`Response.deviation`), and with R larger by one and a spread `STIFFER` times as large. It is the error that is averaged, not its square, which would be
    mostly that of the worse one.

    Steep weights and long gaps cost more than the covariance alone says, as they do in multistep solvers near their
    bound of stability.

    Args:
        process: of the velocities.
        influence: of each tick's velocity on the sample at each tick and, in the last row, on the result if all other velocities stay as
            they are, [ticks + 1, ticks].
        pace: factor on the root mean square errors that the covariance predicts, [ticks].
        response: of the denoiser.
        largest_ratio: a tick is not corrected if its influence on the result is more than this many times the computed tick's; 0: none is.
        caution: of predictions.
        handovers: ticks at which another denoiser takes over, which are computed. Ticks after one are not predicted from what the denoiser before
            returned.
        with_clipping: the same error with clipping counted, which is what a report expects. Plans are made without it, since they turn out better; None:
            nothing is clipped.
        predicting: the process that reused ticks are predicted with; None: `process`, which they are corrected with.
    """

    def __init__(
        self,
        process: Process,
        influence: Array,
        pace: Array,
        response: Response,
        largest_ratio: float,
        caution: Caution,
        handovers: Sequence[int] = (),
        with_clipping: "ErrorModel | None" = None,
        predicting: Process | None = None,
    ) -> None:
        self.covariance = process.covariance
        self.influence, self.on_result = influence[:-1], influence[-1]
        self.with_clipping = with_clipping
        self.pace = pace
        self.largest_ratio = largest_ratio
        self.caution = caution
        self.num_ticks = len(self.on_result)
        every = np.arange(self.num_ticks)
        self._denoisers = np.searchsorted(handovers, every, side="right")
        self._takes_over = np.isin(every, handovers)
        self._before = Belief(
            (predicting or process).believed(caution.roughness)[None], np.array([caution.noise])
        )
        self._between = Belief(self.covariance[None], np.array([BETWEEN]))
        self._response = response.mean[None], response.spread[None]
        self._possible = _possible(response, np.abs(influence[1:].diagonal()))

    def __call__(self, ticks: Sequence[int]) -> float:
        """For these computed ticks, which rise from 0."""
        return float(self.of(np.array([ticks]))[0])

    def of(self, plans: TickArray) -> Array:
        """For several plans of equally many computed ticks, which rise from 0: [plans], by [plans, computed]."""
        return self._expected(plans, self._weights_of(plans))

    def likely(self, ticks: Sequence[int], predicted: "ErrorModel | None" = None) -> float:
        """The error that a report expects of a run. It counts with the most likely response; plans are made with the mean over a smaller and a larger one.

        Args:
            ticks: that are computed, by rising number from 0.
            predicted: reused ticks are predicted and corrected as this one has it, which may know another covariance; None: as this one.
        """
        plans, model = np.array([ticks]), self.with_clipping or self
        weights = (predicted or self)._weights_of(plans)
        return math.sqrt(model._squared(plans, weights, model._response)[0, 0])

    def weights(self, ticks: Sequence[int]) -> Array:
        """W of a plan: of the velocities that computed ticks return, in the one that the noise scheduler gets at each tick, [ticks, computed]."""
        found: Array = self._weights_of(np.array([ticks]))[0]
        return found

    def _expected(self, plans: TickArray, weights: Array) -> Array:
        """The mean error over what the response may be, [plans]."""
        found: Array = np.sqrt(self._squared(plans, weights, self._possible)).mean(axis=1)
        return found

    def _squared(self, plans: TickArray, weights: Array, responses: tuple[Array, Array]) -> Array:
        """The squared errors of plans that are expected with some responses, [plans, responses].

        Args:
            plans: [plans, computed].
            weights: of their computed ticks.
            responses: means and spreads, both [responses, ticks].
        """
        result = np.broadcast_to(self.on_result, (len(plans), 1, self.num_ticks))
        seen = np.concatenate([self.influence[plans], result], axis=1)
        means, spreads = (part[:, plans].swapaxes(0, 1) for part in responses)
        # What is not finite is refused where it is planned.
        with np.errstate(over="ignore", invalid="ignore"):
            passed = seen @ weights
            on_velocities = seen * self._paces(plans)
            direct = -on_velocities  # times S, which is W less one, without a matrix of all ticks
            direct[np.arange(len(plans))[:, None], :, plans] += (on_velocities @ weights).swapaxes(1, 2)
            made = direct @ self.covariance @ direct.swapaxes(1, 2)
            found = _with_answers(made, passed, means, spreads)
        return np.maximum(np.where(np.isnan(found), np.inf, found), 0)

    def _weights_of(self, plans: TickArray) -> Array:
        """W of plans whose ticks are predicted and corrected with this model's own covariance."""
        return self._weights(plans, self._corrections(plans), self._before)

    def _weights(self, plans: TickArray, corrections: Corrections, before: Belief) -> Array:
        """W: of the velocities that computed ticks return, in the one that the noise scheduler gets at each tick, [plans, ticks, computed].

        Args:
            plans: [plans, computed].
            corrections: of them, or of the one plan that all of them are.
            before: what reused ticks are predicted with.
        """
        every = np.arange(self.num_ticks)
        computed, newest = plans[:, None] == every[:, None], _newest(plans, self.num_ticks)
        predicted = self._conditional(plans, np.eye(self.num_ticks)[None], newest, before, ahead=0)
        weights = np.where(computed.any(axis=2, keepdims=True), computed, predicted)
        corrected = corrections.known - corrections.ratios @ weights
        weights[np.arange(len(plans))[:, None], plans[:, 1:]] += corrected
        return weights

    def _corrections(self, plans: TickArray) -> Corrections:
        """The corrections that computed ticks get, except the first."""
        every, own = np.arange(self.num_ticks), self.on_result[plans[:, 1:, None]]
        is_reused = (plans[:, :-1, None] < every) & (every < plans[:, 1:, None])
        is_near = np.abs(self.on_result) <= self.largest_ratio * np.abs(own)
        is_corrected = is_reused & is_near & (own != 0) & ~self._takes_over[plans[:, 1:, None]]
        ratios = np.divide(self.on_result, own, out=np.zeros(is_corrected.shape), where=is_corrected)
        intervals = np.broadcast_to(np.arange(plans.shape[1] - 1), (len(plans), plans.shape[1] - 1))
        return Corrections(ratios, self._conditional(plans, ratios, intervals, self._between, ahead=1))

    def _conditional(
        self, plans: TickArray, sums: Array, newest: TickArray, belief: Belief, ahead: int
    ) -> Array:
        """The weights of computed ticks in the conditional means of sums of velocities.

        Args:
            plans: [plans, computed].
            sums: factors of all ticks' velocities, [plans or 1, sums, ticks].
            newest: which computed tick is the newest before a sum, [plans, sums].
            belief: what the weights are worked out with.
            ahead: 0, or 1 to correct, where the next computed tick is known too.

        Returns:
            [plans, sums, computed]
        """
        covariance, noise = belief
        window = np.arange(plans.shape[1] - ahead)[:, None] + np.arange(1 - WINDOW, 1 + ahead)
        known = plans[:, np.maximum(window, 0)]
        denoisers = self._denoisers[known]
        is_there = (window >= 0) & (denoisers == denoisers[..., WINDOW - 1, None])
        both = is_there[..., :, None] & is_there[..., None, :]
        of_plan = self.num_ticks**2 * np.arange(len(covariance))[:, None, None, None]
        pairs = of_plan + known[..., :, None] * self.num_ticks + known[..., None, :]
        among = np.where(both, covariance.take(pairs), np.eye(WINDOW + ahead))
        each = np.arange(len(plans))[:, None]
        towards = np.take_along_axis(sums @ covariance, known[each, newest], axis=2) * is_there[each, newest]
        found = (precision(among, noise[:, None, None, None])[each, newest] @ towards[..., None])[..., 0]
        in_front = WINDOW - 1  # so many places are of ticks that are not there
        placed = np.zeros((*newest.shape, in_front + plans.shape[1]))
        np.put_along_axis(placed, window[newest] + in_front, found, axis=2)
        return placed[..., in_front:]

    def _paces(self, plans: TickArray) -> Array:
        """By how much errors at each tick are larger than the covariance says, [plans, 1, ticks]: by the pace at the computed tick before it."""
        newest = _newest(plans, self.num_ticks)
        before = np.concatenate([newest[:, :1], newest[:, :-1]], axis=1)
        return np.take_along_axis(self.pace[plans], before, axis=1)[:, None]


def with_each(errors: Sequence[ErrorModel], ticks: Sequence[int]) -> list[float]:
    """The expected error of one plan, by models that differ in nothing but their caution. Faster than one after the other."""
    first, plans = errors[0], np.array([ticks] * len(errors))
    before = Belief(
        *(np.concatenate(each) for each in zip(*(error._before for error in errors), strict=True))
    )
    weights = first._weights(plans, first._corrections(plans[:1]), before)
    return [float(found) for found in first._expected(plans, weights)]


def _possible(response: Response, steps: Array) -> tuple[Array, Array]:
    """What a response may be: means and spreads, both [responses, ticks].

    Args:
        response: of the denoiser.
        steps: how far a velocity moves the next sample, [ticks]. No deviation makes a mean so large that the plain run would turn errors
            around at each step.
    """
    if response.deviation is None:
        return response.mean[None], response.spread[None]
    stable = np.divide(1, steps, out=np.full(len(steps), np.inf), where=steps > 0)
    limit = np.maximum(stable, np.abs(response.mean))
    means = np.stack([response.mean - response.deviation, response.mean + response.deviation])
    return np.clip(means, -limit, limit), np.stack([response.spread, STIFFER * response.spread])


def _newest(plans: TickArray, num_ticks: int) -> TickArray:
    """Which computed tick is the newest at each tick of a run, itself among them, [plans, ticks]."""
    newest: TickArray = (plans[:, None] <= np.arange(num_ticks)[:, None]).sum(axis=2) - 1
    return newest


def _with_answers(made: Array, passed: Array, means: Array, spreads: Array) -> Array:
    """The squared errors of results, of which the denoiser's answers to the errors of its samples are a part, [plans, responses].

    Args:
        made: the covariance of errors without these answers, of the samples before computed ticks and of the result,
            [plans, computed + 1, computed + 1].
        passed: what these have of an error that a computed tick returns, [plans, computed + 1, computed].
        means: of responses at computed ticks, [plans, responses, computed].
        spreads: likewise.
    """
    rows, count = passed.shape[1:]
    gains = np.zeros((*means.shape[:2], rows, count))
    for i in range(rows):
        steps = (passed[:, None, i, :i] * means[:, :, :i])[:, :, None]
        gains[:, :, i] = passed[:, None, i] + (steps @ gains[:, :, :i])[:, :, 0]
    followed = np.tile(np.eye(rows), (*means.shape[:2], 1, 1))
    followed[..., :count] += gains * means[:, :, None]
    squares: Array = ((followed @ made[:, None]) * followed).sum(axis=3)
    drawn = np.square(gains * spreads[:, :, None])
    for i in range(1, rows):
        squares[:, :, i] += (drawn[:, :, i, :i] * squares[:, :, :i]).sum(axis=2)
    return squares[:, :, -1]
