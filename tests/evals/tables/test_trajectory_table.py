"""What `speedup=` gains on even ticks is told with its interval, and as far as it shows in 8 bits."""

from diffcache.evals.tables.trajectory import _seen

MANY = 16


def samples(prior: float, even: float) -> dict[str, list[float]]:
    spread = [0.1 * i for i in range(MANY)]
    return {
        "even": [even + off for off in spread],
        "even, order 2": [20.0] * MANY,
        "prior": [prior + off for off in spread],
    }


def test_a_loss_is_told_against_the_better_even_ticks() -> None:
    found = _seen(samples(45.0, 46.0), "prior")
    assert round(found.mean, 6) == round(found.high, 6) == -1.0


def test_what_rounding_to_8_bits_hides_is_no_loss() -> None:
    assert _seen(samples(60.0, 70.0), "prior").mean == 0.0
