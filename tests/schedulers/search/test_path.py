"""The cheapest path through a run: the shortest where jumps are independent, else by DPCache's recurrence, by hand."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
import torch

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.path import cheapest_path


@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize("count", [3, 4, 6])
def test_with_independent_jumps_no_path_is_shorter(count: int, first: int) -> None:
    jumps = torch.rand(9, 9, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    begin = range(1, first)
    paths = [(0, *begin, *others) for others in combinations(range(first, 8), count - first)]
    lengths = [sum(float(jumps[a, b]) for a, b in pairwise([*path, 8])) for path in paths]
    shortest = min(zip(lengths, paths, strict=True))[1]
    assert cheapest_path(jumps.expand(9, -1, -1), count, first) == [*shortest]


def test_a_jump_costs_what_it_does_after_the_jump_before_it() -> None:
    costs = torch.full((5, 5, 5), torch.inf)
    costs[0, 0, 1], costs[0, 0, 2] = 1, 2
    costs[0, 1, 3], costs[1, 2, 3], costs[0, 2, 3] = 5, 0, 3
    costs[1, 3, 4], costs[2, 3, 4] = 1, 4
    # 0, 1, 3: 1 + 5 + 1. 0, 2, 3: 2 + 3 + 4, though 3 is reached more cheaply by it: D[2, 3] = 5 with P[2, 3] = 2.
    assert cheapest_path(costs, 3) == [0, 2, 3]
    costs[0, 1, 3] = 3.5  # D[2, 3] = 4.5 with P[2, 3] = 1
    assert cheapest_path(costs, 3) == [0, 1, 3]


def test_a_count_that_no_path_has_is_refused() -> None:
    costs = torch.ones(5, 5, 5)
    costs[:, :, 4] = torch.inf
    costs[:, 3, 4] = 1
    assert cheapest_path(costs, 2) == [0, 3]
    with pytest.raises(ConfigError, match="no path computes 1 of 4 ticks"):
        cheapest_path(costs, 1)
