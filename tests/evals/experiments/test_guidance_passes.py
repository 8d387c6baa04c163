"""What is left of a tick's error where its conditional output is known."""

import pytest
import torch

from diffcache.evals.experiments.guidance_passes import _joint, _left, _passes

TICKS, ELEMENTS = 12, 4000


def rough(seed: int) -> torch.Tensor:
    return torch.randn(TICKS, ELEMENTS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_nothing_is_left_where_both_passes_agree() -> None:
    assert _left(_joint(rough(0), 1e-4 * rough(1)), 2, 5.0) < 0.01


def test_what_guidance_multiplies_is_left_where_both_are_independent() -> None:
    """Variances are 1 and 3^2, so sqrt(9 / 10) is left."""
    assert _left(_joint(rough(0), rough(1)), 2, 4.0) == pytest.approx(0.9**0.5, abs=0.02)


@pytest.mark.parametrize("first", [True, False])
def test_a_batch_is_taken_apart(first: bool) -> None:
    conditional, other = rough(0), rough(1)
    halves = (conditional, other) if first else (other, conditional)
    batch = [torch.stack([a, b]) for a, b in zip(*halves, strict=True)]
    for passes in (_passes([batch], first), _passes([[*conditional], [*other]], first)):
        assert torch.equal(passes[0], conditional)
        assert torch.equal(passes[1], other)
