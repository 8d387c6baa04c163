"""Hindsight: the weights that make reused ticks good, against sums done by hand."""

from __future__ import annotations

import pytest
import torch

from diffcache.prediction.hindsight import DOUBTED, LARGEST_RATIO, ReusedTick, hindsight_weights, trusted
from diffcache.prediction.predictors import DEGREE, Hold, Polynomial
from diffcache.schedulers.moments import Moment

CURVE = Polynomial(DEGREE, "sigma")


def moment(tick: int) -> Moment:
    return Moment(tick, 1 - tick / 10)


def even(tick: int, to: int) -> float:
    return 1.0


def curved(tick: int) -> float:
    """A quadratic in the noise level."""
    sigma = 1 - tick / 10
    return 3 * sigma**2 - sigma + 2


def added(weights: list[float], *ticks: int) -> float:
    return sum(weight * curved(tick) for weight, tick in zip(weights, ticks, strict=True))


def test_what_was_held_is_replaced_by_the_curve() -> None:
    reused = [ReusedTick(moment(tick), Hold()) for tick in (3, 4)]
    weights = hindsight_weights(reused, moment(5), [moment(2), moment(1)], even, CURVE)
    lacked = curved(3) + curved(4) - 2 * curved(2)
    assert added(weights, 5, 2, 1) == pytest.approx(lacked)


def test_each_tick_counts_as_far_as_it_reaches() -> None:
    reused = [ReusedTick(moment(3), Hold()), ReusedTick(moment(4), Polynomial(1))]
    reach = {3: 2.0, 4: 0.5}
    weights = hindsight_weights(
        reused, moment(6), [moment(2), moment(0)], lambda tick, to: reach[tick] / to, CURVE
    )
    line = curved(2) + (curved(2) - curved(0)) * 1.0
    lacked = 2 / 6 * (curved(3) - curved(2)) + 0.5 / 6 * (curved(4) - line)
    assert added(weights, 6, 2, 0) == pytest.approx(lacked)


def test_older_features_than_the_curve_needs_are_used_up_to_what_the_predictor_used() -> None:
    reused = [ReusedTick(moment(5), Polynomial(2))]
    weights = hindsight_weights(reused, moment(6), [moment(4), moment(2), moment(1)], even, CURVE)
    assert len(weights) == 4
    assert added(weights, 6, 4, 2, 1) == pytest.approx(0)  # a parabola had nothing to make good


def test_one_feature_gives_a_line() -> None:
    weights = hindsight_weights([ReusedTick(moment(1), Hold())], moment(2), [moment(0)], even, CURVE)
    assert weights == pytest.approx([0.5, -0.5])


@pytest.mark.parametrize("ratio", [None, 2 * LARGEST_RATIO, -2 * LARGEST_RATIO])
def test_a_tick_without_a_ratio_or_with_a_huge_one_is_let_be(ratio: float | None) -> None:
    weights = hindsight_weights(
        [ReusedTick(moment(1), Hold())], moment(2), [moment(0)], lambda tick, to: ratio, CURVE
    )
    assert weights == [0, 0]


@pytest.mark.parametrize(("size", "kept"), [(0.1, 1), (DOUBTED, 1), (2 * DOUBTED, 1 / 16), (100, 0)])
def test_a_correction_of_surprising_size_is_doubted(size: float, kept: float) -> None:
    value = torch.tensor([2.0, -2.0])
    change = size * torch.tensor([-2.0, 2.0])
    torch.testing.assert_close(trusted(change, value), kept * change, rtol=1e-4, atol=1e-5)
    assert torch.equal(trusted(0 * change, value), 0 * change)
