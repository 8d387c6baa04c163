"""Scores of tables that a pipeline renders."""

from __future__ import annotations

import pytest
import torch
from support.searches.spaces import STEPS, calls, recorded_space

from diffcache.profiling.searching.scoring import Scorer
from diffcache.schedulers.search.seeds import every


def test_a_table_that_computes_everything_has_no_error_and_one_that_reuses_has() -> None:
    pipe, space = recorded_space()
    scores = Scorer(pipe, calls(), space)(torch.stack([every(STEPS, 1, 1), every(STEPS, 1, 3)]))
    assert scores[0].tolist() == [-100, 1]
    assert scores[1, 0] > -100
    assert scores[1, 1] == pytest.approx(1 / 3)
