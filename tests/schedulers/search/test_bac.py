"""BAC: adaptive caching and the Bubbling Union."""

from __future__ import annotations

import pytest
import torch
from support.searches.toy import drift_of
from support.searches.walks import drifts

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.bac import adaptive_caching, bubbling_union, volatility
from diffcache.schedulers.search.drift import heads_of


@pytest.mark.parametrize(("updates", "ticks"), [(2, [0, 5]), (3, [0, 3, 5]), (4, [0, 1, 3, 5])])
def test_adaptive_caching_finds_the_published_example(updates: int, ticks: list[int]) -> None:
    x = torch.tensor([0, 1, 1.1, 3, 3.2, 6, 6.1, 6.2])
    similarity = 1 - (x.unsqueeze(1) - x).abs() / 10
    table = adaptive_caching(1 - similarity.unsqueeze(0), updates)
    assert table[:, 0].nonzero().flatten().tolist() == ticks
    score = similarity[heads_of(table)[:, 0], torch.arange(8)].sum()
    assert float(score) == pytest.approx({2: 7.14, 3: 7.74, 4: 7.94}[updates])


def test_adaptive_caching_schedules_each_site_by_itself() -> None:
    many = drifts(3, 10)
    together = adaptive_caching(many, 4)
    for site in range(3):
        assert torch.equal(together[:, [site]], adaptive_caching(many[[site]], 4))


def test_a_volatile_feed_forward_also_computes_when_deeper_ones_do() -> None:
    #                     layer 0: attention, feed-forward; layer 1: both; layer 2: both
    table = torch.zeros(6, 6, dtype=torch.bool)
    for site, ticks in enumerate([(0,), (0, 1), (0,), (0, 2), (0, 5), (0, 4)]):
        table[list(ticks), site] = True
    sizes = torch.tensor([9.0, 3.0, 9.0, 2.0, 9.0, 1.0])
    repaired = bubbling_union(table, [0, 0, 1, 1, 2, 2], [False, True] * 3, sizes, 2)
    assert repaired[:, 1].nonzero().flatten().tolist() == [0, 1, 2, 4]
    assert repaired[:, 3].nonzero().flatten().tolist() == [0, 2, 4]
    assert torch.equal(repaired[:, [0, 2, 4, 5]], table[:, [0, 2, 4, 5]])
    assert torch.equal(bubbling_union(table, [0, 0, 1, 1, 2, 2], [False, True] * 3, sizes, 0), table)


def test_feed_forwards_of_one_layer_do_not_change_each_other() -> None:
    table = torch.tensor([[True, True], [True, False], [False, True]])
    assert torch.equal(bubbling_union(table, [0, 0], [True, True], torch.ones(2), 2), table)


def test_volatility_is_the_mean_over_pairs_of_ticks() -> None:
    drift = drift_of(torch.tensor([[0.0], [1.0], [4.0]]))
    assert float(volatility(drift.unsqueeze(0))) == pytest.approx((1 + 4 + 3) / 3)


def test_more_repairs_than_feed_forwards_are_refused() -> None:
    with pytest.raises(ConfigError, match="repaired: 3 is not between 0 and the 1 feed-forwards"):
        bubbling_union(torch.ones(4, 2, dtype=torch.bool), [0, 0], [False, True], torch.ones(2), 3)
