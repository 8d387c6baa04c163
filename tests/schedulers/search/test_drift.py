"""Which feature each tick of a table uses."""

from __future__ import annotations

import pytest
import torch

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.drift import heads_of


def test_a_table_without_the_first_tick_is_refused() -> None:
    with pytest.raises(ConfigError, match="every site must be computed at the first tick"):
        heads_of(torch.zeros(4, 2, dtype=torch.bool))
