"""Pareto order, by hand-computed cases and against brute force."""

import pytest
import torch

from diffcache.schedulers.search.pareto import crowding, fitness, front, hypervolume, ranks

SCORES = torch.tensor([[1.0, 5.0], [2.0, 3.0], [4.0, 1.0], [2.0, 5.0], [4.0, 4.0], [5.0, 5.0]])


def test_ranks_are_one_front_after_the_other() -> None:
    assert ranks(SCORES).tolist() == [0, 0, 0, 1, 1, 2]


def test_crowding_is_the_sum_of_relative_gaps_and_infinite_at_the_ends() -> None:
    distance = crowding(torch.tensor([[0.0, 10.0], [1.0, 6.0], [4.0, 0.0]]))
    assert distance.tolist() == [torch.inf, pytest.approx(2.0), torch.inf]
    distance = crowding(torch.tensor([[0.0, 10.0], [1.0, 8.0], [2.0, 4.0], [4.0, 0.0]]))
    assert distance[1:3].tolist() == pytest.approx([2 / 4 + 6 / 10, 3 / 4 + 8 / 10])


def test_fitness_prefers_rank_then_distance() -> None:
    scores = torch.tensor([[3.0, 3.0], [0.0, 9.0], [1.0, 2.0], [1.1, 1.9], [9.0, 0.0]])
    assert fitness(scores).tolist() == [1, 4, 3, 2, 0]


def test_equal_scores_are_on_the_front_once() -> None:
    scores = torch.cat([SCORES, SCORES[:3]])
    assert scores[front(scores)].tolist() == [[1, 5], [2, 3], [4, 1]]


def test_hypervolume_is_the_dominated_area() -> None:
    assert hypervolume(SCORES, torch.tensor([6.0, 6.0])) == pytest.approx(5 * 1 + 4 * 2 + 2 * 2)
    assert hypervolume(SCORES, torch.tensor([1.0, 6.0])) == 0


def test_hypervolume_agrees_with_counting_cells() -> None:
    scores = torch.randint(0, 30, (40, 2), generator=torch.Generator().manual_seed(0)).double()
    cells = torch.cartesian_prod(torch.arange(30), torch.arange(30))
    counted = (scores <= cells.unsqueeze(1)).all(-1).any(1).sum()
    assert hypervolume(scores, torch.tensor([30.0, 30.0])) == float(counted)
