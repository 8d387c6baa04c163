"""Hand-made tables."""

from __future__ import annotations

import pytest

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.seeds import every, tgate


def test_hand_made_seeds_compute_where_they_say() -> None:
    assert every(6, 2, 3).nonzero()[:, 0].unique().tolist() == [0, 3]
    plan = tgate(10, ["self-attention", "cross-attention", "feed-forward"], gate=6, interval=3)
    assert plan[:, 0].nonzero().flatten().tolist() == [0, 1, 3, 6, 7, 8, 9]
    assert plan[:, 1].nonzero().flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert plan[:, 2].all()


def test_seeds_that_reuse_the_first_tick_are_refused() -> None:
    with pytest.raises(ConfigError, match="interval: 0"):
        every(4, 2, 0)
