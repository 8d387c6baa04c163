"""CacheQuant's schedule keeps the published bounds."""

from __future__ import annotations

import pytest
import torch
from support.searches.walks import drifts

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.cachequant import dps


def test_dps_keeps_the_published_bounds() -> None:
    table = dps(drifts(1, 50)[0], groups=10)
    lengths = torch.diff(table.nonzero().flatten(), append=torch.tensor([50]))
    assert int(table.sum()) == 10
    assert lengths.min() >= 3
    assert lengths.max() <= 10


def test_a_run_of_a_thousand_ticks_has_a_schedule() -> None:
    table = dps(drifts(1, 1000)[0], groups=50)
    assert int(table.sum()) == 50


def test_as_many_ticks_are_computed_as_asked_for() -> None:
    for ticks in (7, 10, 50):
        for groups in range(1, ticks + 1):
            assert int(dps(drifts(1, ticks)[0], groups).sum()) == groups


def test_a_number_of_groups_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="groups: 0 is not between 1 and the 10 ticks"):
        dps(drifts(2, 10)[0], 0)
