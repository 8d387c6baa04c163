"""How much larger guidance makes velocities, by what its passes show or by what is usual."""

from __future__ import annotations

import math

import pytest
import torch

from diffcache.schedulers.guidance import TYPICAL_DISTANCE, TYPICAL_SCALE, UNTELLING, Guidance


@pytest.mark.parametrize("scale", [1.5, 3.0, 7.5])
def test_it_is_the_ratio_of_the_guided_velocity_to_the_conditional_one(scale: float) -> None:
    c, u = torch.randn(2, 10_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    products = [float((one * other).mean()) for one, other in ((c, c), (u, u), (c, u))]
    ratio = Guidance(scale).of(c, u).norm() / c.norm()
    assert Guidance(scale).showing(*products).amplification == pytest.approx(float(ratio), abs=0.005)


def test_a_usual_one_has_passes_that_differ_at_a_right_angle() -> None:
    """u = 1 and c - u = d, at a right angle: c is longer, and guidance makes it longer still."""
    square = 1 / (1 / TYPICAL_DISTANCE**2 - 1)
    for scale in (3.0, 7.5):
        shown = Guidance(scale).showing(1 + square, 1.0, 1.0)
        assert shown.amplification == pytest.approx(Guidance(scale).amplification, abs=0.005)
        assert shown.strength == Guidance(scale).strength == scale
    assert Guidance().amplification == Guidance(TYPICAL_SCALE).amplification


def test_without_guidance_it_is_one() -> None:
    assert Guidance(1.0).amplification == 1
    assert Guidance(1.0).showing(1.0, 2.0, 0.5).amplification == 1


def test_guidance_that_keeps_the_norm_counts_less() -> None:
    for shown in (None, 4.0):
        free, kept = (Guidance(5.0, norm_along=along, shown=shown) for along in (None, 1))
        assert free.amplification == kept.amplification
        assert kept.strength == math.sqrt(free.strength)


def amplifying_as(scale: float) -> float:
    """The amplification of usual passes at a scale."""
    return Guidance(scale).amplification


def test_what_is_shown_counts_only_where_it_is_far_from_the_scale() -> None:
    for usual in (1.01 * 3 / UNTELLING, 3.0, 2.99 * UNTELLING):
        assert Guidance(3.0, shown=amplifying_as(usual)).strength == 3
    for unusual in (1.4, 6.2):
        assert Guidance(3.0, shown=amplifying_as(unusual)).strength == unusual


def test_where_the_scale_is_unknown_the_strength_is_what_is_shown() -> None:
    assert Guidance(shown=amplifying_as(1.4)).strength == 1.4


def test_guidance_is_weaker_than_its_scale_where_the_passes_are_nearer_than_usual() -> None:
    square = 1 / (1 / 0.2**2 - 1)
    weak = Guidance(3.0).showing(1 + square, 1.0, 1.0)
    assert weak.amplification == pytest.approx(math.sqrt(1 + 0.2**2 * (3**2 - 1)), abs=0.005)
    assert weak.strength == 1.3


def test_it_is_never_below_one() -> None:
    assert Guidance(3.0).showing(1.0, 1.0, 1.0 - 1e-9).amplification == 1
    assert Guidance(3.0).showing(4.0, 4.0, 4.5).shown == 1


@pytest.mark.parametrize("products", [(0.0, 1.0, 0.0), (math.nan, 1.0, 0.0), (1.0, math.inf, 0.0)])
def test_passes_that_show_none_leave_it_as_it_was(products: tuple[float, float, float]) -> None:
    assert Guidance(3.0).showing(*products) == Guidance(3.0)
