"""Partitions: the dynamic programme finds what trying all finds."""

from __future__ import annotations

import pytest
import torch
from support.searches.walks import drifts, error_of, every_table

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.bac import adaptive_caching
from diffcache.schedulers.search.partition import Partitions


@pytest.mark.parametrize("ticks", [2, 5, 8, 12])
@pytest.mark.parametrize(("shortest", "longest"), [(1, 12), (1, 3), (2, 5)])
def test_partitions_are_as_good_as_trying_all(ticks: int, shortest: int, longest: int) -> None:
    drift = drifts(1, ticks, seed=ticks)
    cuts = Partitions(drift, ticks, shortest=shortest, longest=longest)
    for groups in range(1, ticks + 1):
        found = [error_of(table, drift) for table in every_table(ticks, groups, shortest, longest)]
        assert float(cuts.costs[0, groups]) == pytest.approx(min(found, default=torch.inf))
        if found:
            assert error_of(cuts.table([groups]), drift) == pytest.approx(min(found))


def test_numbers_of_groups_that_do_not_fit_are_refused() -> None:
    drift = drifts(2, 10)
    with pytest.raises(ConfigError, match="possible are 2 to 3"):
        Partitions(drift, 10, shortest=3, longest=5).table([5, 5])
    with pytest.raises(ConfigError, match="most: 11 groups do not fit into 10 ticks"):
        adaptive_caching(drift, 11)
