"""Routers and their gates."""

from __future__ import annotations

import pytest
import torch
from support.searches.toy import Toy

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.router import Gates, Router, within_budget


def random_router(toy: Toy, seed: int = 0) -> Router:
    return Router(torch.randn(toy.ticks, toy.sites, generator=torch.Generator().manual_seed(seed)))


def test_a_gate_returns_what_inference_will_and_has_the_gradient_of_the_mixture() -> None:
    scores = torch.tensor([[1.0], [0.9], [0.2]], requires_grad=True)
    gates = Gates(scores)
    assert gates(0, torch.tensor([5.0])).tolist() == [5]
    gates.tick = 1
    assert gates(0, torch.tensor([7.0])).tolist() == [7]
    gates.tick = 2
    result = gates(0, torch.tensor([10.0]))
    assert result.tolist() == [7]
    result.sum().backward()
    # at tick 2 fresh - held; at tick 1, whose feature is held here, its fresh - held; the first tick is not asked
    assert scores.grad is not None
    assert scores.grad.flatten().tolist() == [0, 2, 3]


def test_a_forced_tick_computes_everything() -> None:
    gates = Gates(torch.zeros(2, 1), forced=1)
    gates(0, torch.tensor([5.0]))
    gates.tick = 1
    assert gates(0, torch.tensor([7.0])).tolist() == [7]


def test_a_router_of_a_table_has_that_table() -> None:
    toy = Toy()
    for table in toy.seeds():
        assert torch.equal(Router.of_table(table).table(), table)


def test_scores_give_tables_for_any_budget() -> None:
    router = random_router(Toy())
    prices = Toy().prices
    small, large = (within_budget(router.scores().detach(), prices, budget) for budget in (3000, 6000))
    for table, budget in ((small, 3000), (large, 6000)):
        spent = int((table.sum(0) * torch.tensor(prices)).sum())
        assert budget - max(prices) < spent <= budget
    assert (large | ~small).all()
    assert small[0].all()


def test_a_budget_below_one_tick_is_refused() -> None:
    with pytest.raises(ConfigError, match="give at least 7"):
        within_budget(torch.ones(3, 2), (3, 4), 6)
