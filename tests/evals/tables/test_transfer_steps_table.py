"""Of a carried covariance medians are told, and every row that loses by its name."""

from typing import Any

from diffcache.evals.tables.gains import even_of
from diffcache.evals.tables.transfer_steps import _against, _medians


def row(testbed: str, **figures: float) -> dict[str, Any]:
    return {"testbed": testbed, "steps": 50, "ticks": 25, "even": 40.0, "even, order 2": 42.0, **figures}


ROWS = [
    row("dit", prior=43.0, transferred=46.0, own=47.0),
    row("sd", prior=45.0, transferred=44.0, own=44.2),
    row("wan", prior=44.0, transferred=50.0, own=49.0),
]


def test_gains_are_medians_over_testbeds_on_the_better_even_ticks() -> None:
    assert even_of(ROWS[0]) == 42.0
    assert _medians(ROWS) == [["50", "25", "+2.0", "+4.0", "+5.0"]]


def test_each_row_that_loses_is_named() -> None:
    prior, own, none = _against(ROWS).splitlines()
    assert prior.endswith("below in 1 of 3 rows: sd 25 of 50 (-1.0)")
    assert "median +3.0 dB, from -1.0 to +6.0" in prior
    assert own.endswith("below in 1 of 3 rows: dit 25 of 50 (-1.0)")  # 0.2 dB are no loss
    assert none.endswith("below in 0 of 3 rows")
