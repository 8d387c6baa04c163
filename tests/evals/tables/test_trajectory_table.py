"""What `speedup=` gains on even ticks is told with its interval, and as far as it shows in 8 bits."""

from typing import Any

from diffcache.evals.tables.trajectory import _seen

MANY = 16


def row(prior: float, even: float) -> dict[str, Any]:
    medians = {"even": even, "even, order 2": 20.0, "prior": prior}
    spread = [0.1 * i for i in range(MANY)]
    return {**medians, "samples": {name: [value + off for off in spread] for name, value in medians.items()}}


def test_a_loss_is_told_against_the_better_even_ticks() -> None:
    found = _seen(row(45.0, 46.0), "prior")
    assert round(found.mean, 6) == round(found.high, 6) == -1.0


def test_what_rounding_to_8_bits_hides_is_no_loss() -> None:
    assert _seen(row(60.0, 70.0), "prior").mean == 0.0
