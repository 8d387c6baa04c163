"""One schedule for all sites."""

from __future__ import annotations

import pytest
from support.searches.walks import drifts, error_of, every_table

from diffcache.schedulers.search.shared import shared


def test_a_shared_schedule_is_the_best_of_those_that_compute_all_sites_together() -> None:
    drift = drifts(3, 8)
    table = shared(drift, 3)
    assert table.shape == (8, 3)
    best = min(error_of(one.expand(-1, 3), drift) for one in every_table(8, 3, 1, 8))
    assert error_of(table, drift) == pytest.approx(best)
