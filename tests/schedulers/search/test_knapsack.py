"""The knapsack: one budget for all sites."""

from __future__ import annotations

import pytest
import torch
from support.searches.walks import drifts, error_of, every_table

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search import knapsack
from diffcache.schedulers.search.knapsack import allocate


@pytest.mark.parametrize("budget", [11, 14, 19, 26, 60])
def test_the_knapsack_is_as_good_as_trying_all(budget: int) -> None:
    ticks, prices = 6, (3, 1, 7)
    drift = drifts(3, ticks)
    columns = [
        [table for groups in range(1, ticks + 1) for table in every_table(ticks, groups, 1, ticks)]
        for _ in prices
    ]
    best = torch.inf
    options = [
        [(int(t.sum()) * price, error_of(t, drift[[s]])) for t in columns[s]]
        for s, price in enumerate(prices)
    ]
    for first in options[0]:
        for second in options[1]:
            for third in options[2]:
                if first[0] + second[0] + third[0] <= budget:
                    best = min(best, first[1] + second[1] + third[1])
    table = allocate(drift, prices, budget)
    assert int((table.sum(0) * torch.tensor(prices)).sum()) <= budget
    assert error_of(table, drift) == pytest.approx(best)


def test_the_knapsack_never_overspends_on_odd_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knapsack, "GRID", 100)
    prices = (104_729, 1_299_709, 15_485_863, 611_953, 9_737_333)
    for budget in range(3 * sum(prices), 15 * sum(prices), 1_999_993):
        table = allocate(drifts(5, 20), prices, budget)
        spent = int((table.sum(0) * torch.tensor(prices)).sum())
        assert 0.9 * budget < spent <= budget


def test_a_budget_below_one_tick_and_prices_that_are_not_positive_are_refused() -> None:
    drift = drifts(2, 10)
    with pytest.raises(ConfigError, match="give at least 12"):
        allocate(drift, (4, 8), 11)
    with pytest.raises(ConfigError, match="prices: each must be a positive whole number"):
        allocate(drift, (0, 8), 11)
