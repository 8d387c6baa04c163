"""A budget is kept: never more compute than asked for, and never more than two ticks fewer."""

import pytest

from diffcache.recipes.budget import allowed, spread


@pytest.mark.parametrize("speedup", [1, 1.3, 1.5, 2, 2.5, 3, 4, 10, 100])
@pytest.mark.parametrize("ticks", [1, 2, 5, 7, 20, 28, 50, 100])
def test_as_many_ticks_as_the_budget_allows(ticks: int, speedup: float) -> None:
    count = allowed(ticks, speedup)
    assert count == max(int(ticks / speedup + 1e-9), 1)
    placed = spread(ticks, count, max(min(3, count - 1), 1))
    assert len(set(placed)) == len(placed) == count
    assert placed == sorted(placed)
    assert placed[0] == 0
    assert placed[-1] == (ticks - 1 if count > 1 else 0)


def test_ticks_after_the_warm_up_are_spread_evenly() -> None:
    assert spread(50, 12, 3) == [0, 1, 2, 7, 12, 18, 23, 28, 33, 39, 44, 49]
