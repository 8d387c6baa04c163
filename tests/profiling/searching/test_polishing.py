"""Polishing: a local search on a pipeline."""

from __future__ import annotations

import torch
from support.searches.spaces import calls, recorded_space

from diffcache.profiling.searching.polishing import polished
from diffcache.profiling.searching.scoring import Scorer


def test_polishing_keeps_the_number_of_ticks_and_is_no_worse_than_either_start() -> None:
    pipe, space = recorded_space()
    scorer = Scorer(pipe, calls(), space)
    late, even = torch.tensor(
        [[True, False, False, False, True, True], [True, False, True, False, False, True]]
    )
    table = polished(scorer, late.unsqueeze(1), candidates=6)
    losses = scorer(torch.stack([table, late.unsqueeze(1), even.unsqueeze(1)]))[:, 0]
    assert int(table.sum()) == 3
    assert losses[0] <= losses[1:].min()
    assert torch.equal(polished(scorer, late.unsqueeze(1), candidates=1), late.unsqueeze(1))
