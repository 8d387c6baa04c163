"""Bootstrap intervals: as wide as they should be, and of nothing where samples are alike."""

import numpy as np
import pytest
import torch

from diffcache.evals.harness.intervals import interval_of_gain, interval_of_median, mean_with_interval


def test_the_interval_of_a_mean() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    mean, low, high = mean_with_interval(values)
    assert mean == values.mean()
    assert low < mean < high
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.05)
    assert mean_with_interval(np.array([1.0, 1.0])) == (1.0, 1.0, 1.0)
    assert (
        mean_with_interval(torch.from_numpy(values)) == mean_with_interval(list(values)) == (mean, low, high)
    )


def test_the_interval_of_a_median() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    low, high = interval_of_median(list(values))
    assert low < np.median(values) < high
    assert high - low == pytest.approx(2 * 1.96 * 1.2533 * values.std() / 20, rel=0.15)
    assert interval_of_median([1.0, 1.0]) == [1.0, 1.0]


def test_the_interval_of_a_gain_is_of_the_median_over_testbeds() -> None:
    numbers = np.random.default_rng(1)
    pairs = [(numbers.normal(gain, 1.0, 4000), np.zeros(4000)) for gain in (1.0, 3.0, 30.0)]
    low, high = interval_of_gain(pairs)
    assert low < np.median(pairs[1][0]) < high
    assert high - low == pytest.approx(2 * 1.96 * 1.2533 / np.sqrt(4000), rel=0.2)
    assert interval_of_gain([([5.0, 5.0], [2.0, 2.0])]) == (3.0, 3.0)
    alike = [(each, each - 2.0) for each, _ in pairs]  # the same samples of both are drawn
    assert interval_of_gain(alike) == pytest.approx((2.0, 2.0))
