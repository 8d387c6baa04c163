"""Elastic-Cache's bookkeeping: which tokens it tracks, and which of the rows that are looked at count."""

import torch

from diffcache.language.drift import Watched, most_attended


def test_the_most_attended_of_each_layer_are_chosen_among_the_eligible() -> None:
    received = torch.tensor([[[0.1, 0.9, 0.5, 0.2]], [[0.8, 0.9, 0.1, 0.2]]])
    eligible = torch.tensor([[True, False, True, True]])
    assert most_attended(received, eligible, 1).tolist() == [[True, False, True, False]]
    assert most_attended(received, eligible, 9).tolist() == eligible.tolist()


def test_short_lists_are_filled_up_with_positions_that_do_not_count() -> None:
    watched = Watched.of(torch.tensor([[0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]]).bool())
    assert watched.rows.tolist() == [[1, 3], [2, 2], [3, 3]]
    assert watched.share.tolist() == [[0.5, 0.5], [1.0, 0.0], [0.0, 0.0]]


def test_nothing_that_counts_has_not_drifted() -> None:
    watched = Watched.of(torch.tensor([[0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]]).bool())
    cosine = torch.tensor([[0.5, 1.0], [0.25, 0.25], [0.0, 0.0]])
    assert watched.mean(cosine).tolist() == [0.75, 0.25, 1.0]
