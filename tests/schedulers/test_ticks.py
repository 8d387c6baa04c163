"""Ticks are spread over a run."""

from __future__ import annotations

import pytest

from diffcache.schedulers.ticks import spread


@pytest.mark.parametrize("ticks", [5, 7, 20, 28, 50, 100])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_evenly_spread_ticks_are_as_many_as_asked_for(ticks: int, count: int) -> None:
    placed = spread(ticks, count, max(min(3, count - 1), 1))
    assert len(set(placed)) == len(placed) == count
    assert placed == sorted(placed)
    assert placed[0] == 0
    assert placed[-1] == (ticks - 1 if count > 1 else 0)


def test_the_last_tick_may_be_left_out() -> None:
    assert spread(10, 4, warmup=1, compute_last=False) == [0, 2, 5, 8]
    assert spread(20, 6, warmup=3, compute_last=False) == [0, 1, 2, 6, 11, 16]
    assert spread(12, 4, warmup=1, compute_last=False) == [0, 3, 6, 9]
    assert spread(20, 5, warmup=1, compute_last=False) == [0, 4, 8, 12, 16]
    assert spread(22, 6, warmup=3, compute_last=False) == [0, 1, 2, 7, 12, 17]
    assert spread(4, 4, compute_last=False) == [0, 1, 2, 3]
