"""Bisection finds where something begins to hold."""

import pytest

from diffcache.schedulers.search.bisection import smallest


def test_the_smallest_number_is_found_to_within_the_halvings() -> None:
    asked: list[float] = []
    found = smallest(lambda x: bool(asked.append(x)) or x >= 0.3, 0.0, 1.0, 10)
    assert found == pytest.approx(0.3, abs=2**-10)
    assert found >= 0.3
    assert len(asked) == 10


def test_the_upper_end_is_returned_where_nothing_below_it_holds() -> None:
    assert smallest(lambda x: False, 0.0, 8.0, 5) == 8.0
