"""What computed ticks tell a cache scheduler of the errors of reusing them."""

import pytest
import torch

from diffcache.engine.comparison import squares_of


def test_squares_are_means_over_elements_and_then_over_streams() -> None:
    computed = [torch.full((2, 4), 2.0), torch.full((100,), 4.0)]
    near, far = ([stream + by for stream in computed] for by in (0.5, -3.0))
    size, first, second, _ = squares_of([near, far], computed, torch.zeros(2, 4)).tolist()
    assert size == pytest.approx((4 + 16) / 2)
    assert (first, second) == pytest.approx((0.25, 9.0))


def test_squares_of_half_precision_do_not_overflow() -> None:
    computed = [torch.full((8,), 300.0, dtype=torch.float16)]
    size, error, _ = squares_of([[computed[0] / 2]], computed, computed[0]).tolist()
    assert (size, error) == pytest.approx((90_000, 22_500))


def test_the_variance_is_that_within_each_sample() -> None:
    sample = torch.stack([10 + 2 * torch.randn(3, 64, 64), 4 * torch.randn(3, 64, 64)])
    *_, variance = squares_of([[sample]], [sample], sample.half()).tolist()
    assert variance == pytest.approx((4 + 16) / 2, rel=0.05)
