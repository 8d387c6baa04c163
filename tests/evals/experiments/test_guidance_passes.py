"""What is left of a tick's error where its conditional output is known."""

import pytest
import torch

from diffcache.evals.experiments.guidance_passes import _joint, _left

TICKS, ELEMENTS = 12, 4000


def rough(seed: int) -> torch.Tensor:
    return torch.randn(TICKS, ELEMENTS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_nothing_is_left_where_both_passes_agree() -> None:
    assert _left(_joint(rough(0), 1e-4 * rough(1)), 2, 5.0) < 0.01


def test_what_guidance_multiplies_is_left_where_both_are_independent() -> None:
    """Variances are 1 and 3^2, so sqrt(9 / 10) is left."""
    assert _left(_joint(rough(0), rough(1)), 2, 4.0) == pytest.approx(0.9**0.5, abs=0.02)
