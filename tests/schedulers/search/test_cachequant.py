"""CacheQuant's schedule keeps the published bounds."""

from __future__ import annotations

import pytest
import torch
from searches.walks import drifts

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.cachequant import dps


def test_dps_keeps_the_published_bounds() -> None:
    table = dps(drifts(1, 50)[0], interval=5)
    lengths = torch.diff(table.nonzero().flatten(), append=torch.tensor([50]))
    assert int(table.sum()) == 10
    assert lengths.min() >= 3
    assert lengths.max() <= 10


def test_a_run_of_a_thousand_ticks_has_a_schedule() -> None:
    table = dps(drifts(1, 1000)[0], interval=20)
    assert int(table.sum()) == 50


def test_an_interval_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="interval: 0 is not between 1 and the 10 ticks"):
        dps(drifts(2, 10)[0], 0)
