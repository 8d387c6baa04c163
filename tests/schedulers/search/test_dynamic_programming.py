"""Dynamic programming: it finds what trying everything finds, and the published golden vectors."""

from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest
import torch
from torch import Tensor

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search import knapsack
from diffcache.schedulers.search.bac import adaptive_caching, bubbling_union, volatility
from diffcache.schedulers.search.cachequant import dps
from diffcache.schedulers.search.drift import drift_of, heads_of, staleness
from diffcache.schedulers.search.knapsack import allocate
from diffcache.schedulers.search.partition import Partitions
from diffcache.schedulers.search.shared import shared


def drifts(sites: int, ticks: int, seed: int = 0) -> Tensor:
    """Of random walks, so that drift is neither smooth nor symmetric in length."""
    generator = torch.Generator().manual_seed(seed)
    walks = torch.randn(sites, ticks, 5, generator=generator).cumsum(1)
    return torch.stack([drift_of(walk) for walk in walks])


def every_table(ticks: int, groups: int, shortest: int, longest: int) -> Iterator[Tensor]:
    """All tables of one site that cut the ticks into so many groups within the bounds."""
    for cuts in combinations(range(1, ticks), groups - 1):
        edges = (0, *cuts, ticks)
        if all(shortest <= b - a <= longest for a, b in pairwise(edges)):
            table = torch.zeros(ticks, 1, dtype=torch.bool)
            table[list(edges[:-1])] = True
            yield table


def paid(table: Tensor, drift: Tensor) -> float:
    return float(staleness(table, drift).sum())


@pytest.mark.parametrize("ticks", [2, 5, 8, 12])
@pytest.mark.parametrize(("shortest", "longest"), [(1, 12), (1, 3), (2, 5)])
def test_partitions_are_those_of_brute_force(ticks: int, shortest: int, longest: int) -> None:
    drift = drifts(1, ticks, seed=ticks)
    cuts = Partitions(drift, ticks, shortest=shortest, longest=longest)
    for groups in range(1, ticks + 1):
        found = [paid(table, drift) for table in every_table(ticks, groups, shortest, longest)]
        assert float(cuts.costs[0, groups]) == pytest.approx(min(found, default=torch.inf))
        if found:
            assert paid(cuts.table([groups]), drift) == pytest.approx(min(found))


def test_dps_keeps_the_published_bounds() -> None:
    table = dps(drifts(1, 50)[0], interval=5)
    lengths = torch.diff(table.nonzero().flatten(), append=torch.tensor([50]))
    assert int(table.sum()) == 10
    assert lengths.min() >= 3
    assert lengths.max() <= 10


def test_a_thousand_ticks_are_cut() -> None:
    table = dps(drifts(1, 1000)[0], interval=20)
    assert int(table.sum()) == 50


@pytest.mark.parametrize(("updates", "ticks"), [(2, [0, 5]), (3, [0, 3, 5]), (4, [0, 1, 3, 5])])
def test_adaptive_caching_repeats_the_golden_vector(updates: int, ticks: list[int]) -> None:
    x = torch.tensor([0, 1, 1.1, 3, 3.2, 6, 6.1, 6.2])
    similarity = 1 - (x.unsqueeze(1) - x).abs() / 10
    table = adaptive_caching(1 - similarity.unsqueeze(0), updates)
    assert table[:, 0].nonzero().flatten().tolist() == ticks
    score = similarity[heads_of(table)[:, 0], torch.arange(8)].sum()
    assert float(score) == pytest.approx({2: 7.14, 3: 7.74, 4: 7.94}[updates])


def test_adaptive_caching_treats_each_site_by_itself() -> None:
    many = drifts(3, 10)
    together = adaptive_caching(many, 4)
    for site in range(3):
        assert torch.equal(together[:, [site]], adaptive_caching(many[[site]], 4))


def test_a_shared_schedule_is_the_best_of_those_that_compute_all_sites_together() -> None:
    drift = drifts(3, 8)
    table = shared(drift, 3)
    assert table.shape == (8, 3)
    best = min(paid(one.expand(-1, 3), drift) for one in every_table(8, 3, 1, 8))
    assert paid(table, drift) == pytest.approx(best)


@pytest.mark.parametrize("budget", [11, 14, 19, 26, 60])
def test_the_knapsack_is_that_of_brute_force(budget: int) -> None:
    ticks, prices = 6, (3, 1, 7)
    drift = drifts(3, ticks)
    columns = [
        [table for groups in range(1, ticks + 1) for table in every_table(ticks, groups, 1, ticks)]
        for _ in prices
    ]
    best = torch.inf
    options = [
        [(int(t.sum()) * price, paid(t, drift[[s]])) for t in columns[s]] for s, price in enumerate(prices)
    ]
    for first in options[0]:
        for second in options[1]:
            for third in options[2]:
                if first[0] + second[0] + third[0] <= budget:
                    best = min(best, first[1] + second[1] + third[1])
    table = allocate(drift, prices, budget)
    assert int((table.sum(0) * torch.tensor(prices)).sum()) <= budget
    assert paid(table, drift) == pytest.approx(best)


def test_the_knapsack_never_overspends_on_odd_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knapsack, "GRID", 100)
    prices = (104_729, 1_299_709, 15_485_863, 611_953, 9_737_333)
    for budget in range(3 * sum(prices), 15 * sum(prices), 1_999_993):
        table = allocate(drifts(5, 20), prices, budget)
        spent = int((table.sum(0) * torch.tensor(prices)).sum())
        assert 0.9 * budget < spent <= budget


def test_weights_move_compute_to_the_sites_that_matter() -> None:
    drift = drifts(1, 12).expand(2, -1, -1)
    even = allocate(drift, (1, 1), 12)
    first = allocate(drift, (1, 1), 12, weights=torch.tensor([10.0, 1.0]))
    assert even.sum(0).tolist() == [6, 6]
    assert int(first[:, 0].sum()) > 6


def test_the_longest_group_is_kept() -> None:
    table = allocate(drifts(2, 20), (1, 5), budget=40, longest=4)
    assert (torch.arange(20).unsqueeze(1) - heads_of(table)).max() < 4


def test_bubbling_adds_the_deeper_feed_forwards_to_the_volatile_one() -> None:
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


def test_feed_forwards_of_one_layer_do_not_bubble_into_each_other() -> None:
    table = torch.tensor([[True, True], [True, False], [False, True]])
    assert torch.equal(bubbling_union(table, [0, 0], [True, True], torch.ones(2), 2), table)


def test_volatility_is_the_mean_over_pairs_of_ticks() -> None:
    drift = drift_of(torch.tensor([[0.0], [1.0], [4.0]]))
    assert float(volatility(drift.unsqueeze(0))) == pytest.approx((1 + 4 + 3) / 3)


@pytest.mark.parametrize(("metric", "expected"), [("l1", 1.0), ("mse", 2.0), ("cosine", 1.0)])
def test_drift_by_its_metrics(metric: str, expected: float) -> None:
    drift = drift_of(torch.tensor([[2.0, 0.0], [2.0, 2.0], [0.0, 2.0]]), metric)  # type: ignore[arg-type]
    if metric == "cosine":
        assert float(drift[0, 2]) == pytest.approx(expected)
    else:
        assert float(drift[0, 1]) == pytest.approx(expected)
    assert not drift.tril().any()


def test_what_cannot_be_done_is_said() -> None:
    drift = drifts(2, 10)
    with pytest.raises(ConfigError, match="metric: 'l2' is not one of l1, mse, cosine"):
        drift_of(torch.zeros(3, 2), "l2")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="possible are 2 to 3"):
        Partitions(drift, 10, shortest=3, longest=5).table([5, 5])
    with pytest.raises(ConfigError, match="most: 11 groups do not fit into 10 ticks"):
        adaptive_caching(drift, 11)
    with pytest.raises(ConfigError, match="interval: 0 is not between 1 and the 10 ticks"):
        dps(drift[0], 0)
    with pytest.raises(ConfigError, match="give at least 12"):
        allocate(drift, (4, 8), 11)
    with pytest.raises(ConfigError, match="prices: each must be a positive whole number"):
        allocate(drift, (0, 8), 11)
    with pytest.raises(ConfigError, match="every site must be computed at the first tick"):
        heads_of(torch.zeros(4, 2, dtype=torch.bool))
    with pytest.raises(ConfigError, match="repaired: 3 is not between 0 and the 1 feed-forwards"):
        bubbling_union(torch.ones(4, 2, dtype=torch.bool), [0, 0], [False, True], torch.ones(2), 3)
