"""What `speedup=` gains on even ticks is told with its interval, and as far as it shows in 8 bits."""

from typing import Any

from diffcache.evals.tables.trajectory import _above, _seen

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


def test_what_measuring_adds_is_told_by_the_number_of_ticks() -> None:
    rows = [
        {
            "ticks": ticks,
            "prior": 40.0,
            "tuned": 40.0 + gain,
            "planned": 40.5,
            "own": 41.0,
            "seen": 39.0,
            "samples": {"prior": [40.0, 40.0], "tuned": [40.0 + gain, 40.0 + gain]},
        }
        for ticks, gain in ((16, 1.0), (16, 3.0), (16, 8.0), (33, 5.0), (33, 7.0))
    ]
    told = _above(rows)
    assert (
        "with 33 / 16 ticks: `tune` +6.0 / +3.0 dB; without the correction of the last step +0.5 / +0.5 dB;"
        in told
    )
    assert "nobody has beforehand -1.0 / -1.0 dB" in told
    assert told.endswith("over samples: [+6.0, +6.0] / [+3.0, +3.0]")
