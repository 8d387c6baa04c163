"""Probing: factors that explain errors, and responses with hindsight."""

from __future__ import annotations

from dataclasses import replace

import torch
from support.searches.spaces import calls, recorded_space

from diffcache.prediction.predictors import DEGREE
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.searching.probing import factors, probed
from diffcache.profiling.searching.scoring import Scorer
from diffcache.profiling.searching.space import HOLD
from diffcache.recipes.replay import ReplayConfig


def test_factors_explain_the_errors_of_sites_and_ticks() -> None:
    generator = torch.Generator().manual_seed(0)
    squared = torch.rand(3, 8, generator=generator, dtype=torch.float64)
    u, v = torch.tensor([1.0, 3.0, 0.5]).double(), torch.arange(1.0, 9).double()
    squared[:, 0] = 0
    by_tick = v * (u @ squared)
    by_site = u * (squared[:, 1::2] @ v[1::2])
    found = factors(squared, by_tick, by_site)
    torch.testing.assert_close(found[:, 1:], (u.unsqueeze(1) * v)[:, 1:])


def test_a_space_with_hindsight_is_probed_and_rendered_with_it() -> None:
    pipe, plain = recorded_space()
    corrected = replace(plain, predictor={**HOLD, "hindsight": True})
    table = plain.together([0, 2, 4])
    pictures = [Scorer(pipe, calls(), space).pictures(table) for space in (plain, corrected)]
    by_hand = ReplayConfig(schedule=plain.schedule(table, {}), hindsight=True)
    assert torch.equal(pictures[1], FullRuns(pipe, calls()).cached(by_hand))
    assert not torch.equal(pictures[0], pictures[1])
    responses = [probed(pipe, calls(), space).response for space in (plain, corrected)]
    assert [response.hindsight for response in responses if response] == [0, DEGREE]
    lengths = [response.moves.square().sum(1) for response in responses if response]
    assert not torch.allclose(lengths[0][1:-1], lengths[1][1:-1])
