"""The best of several proposals on a few samples."""

import pytest
import torch

from diffcache.profiling.searching.ranking import best_ranked


def test_the_best_is_better_on_most_samples_and_not_by_the_most() -> None:
    usual, lucky, worse = (
        torch.tensor(one) for one in ([3.0, 3.0, 3.0, 3.0], [2.9, 2.9, 2.9, 30.0], [1.0] * 4)
    )
    assert lucky.mean() > usual.mean()
    assert best_ranked([worse, lucky, usual]) == 2


def test_ranks_count_among_all_proposals() -> None:
    """The middle one is never the best, and never bad."""
    first, second, middle = (
        torch.tensor([9.0, 9.0, 1.0, 1.0]),
        torch.tensor([1.0, 1.0, 9.0, 8.9]),
        torch.tensor([5.0] * 4),
    )
    others = [torch.tensor([4.0] * 4), torch.tensor([3.0] * 4)]
    assert best_ranked([first, second, middle, *others]) == 2


@pytest.mark.parametrize("count", [1, 3])
def test_of_equal_ones_the_first_is_taken(count: int) -> None:
    assert best_ranked([torch.tensor([100.0, 100.0])] * count) == 0


def test_proposals_that_are_alike_do_not_take_each_others_wins() -> None:
    better, worse = torch.tensor([2.0, 2.0, 2.0, 1.0, 1.0]), torch.tensor([1.0, 1.0, 1.0, 2.0, 2.0])
    assert best_ranked([better, worse, better]) == 0
