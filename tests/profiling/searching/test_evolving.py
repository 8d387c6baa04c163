"""Evolution on a pipeline: it continues where it was interrupted, and is no worse than its start."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from support.searches.spaces import STEPS, calls, recorded_space
from torch import Tensor

from diffcache.profiling.searching.evolving import Budget, EvolutionSettings, evolve
from diffcache.profiling.searching.scoring import Scorer, minus_psnr
from diffcache.schedulers.errors import ConfigError, ScheduleError
from diffcache.schedulers.search.seeds import every


def test_an_interrupted_evolution_ends_with_the_same_front(tmp_path: Path) -> None:
    pipe, space = recorded_space()
    budget, settings = Budget(generations=3), EvolutionSettings(population=6, children=3, screened=False)
    scorer = Scorer(pipe, calls(), space)
    whole = evolve(scorer, tmp_path / "whole", budget, settings)
    rendered = 0

    def dies(pictures: Tensor, full: Tensor) -> float:
        nonlocal rendered
        rendered += 1
        if rendered == len(whole.tables) - 1:  # in the middle of the last generation
            raise KeyboardInterrupt
        return minus_psnr(pictures, full)

    dies.__name__ = minus_psnr.__name__
    folder = tmp_path / "dies"
    with pytest.raises(KeyboardInterrupt):
        evolve(Scorer(pipe, calls(), space, loss=dies), folder, budget, settings)
    assert len((folder / "log.jsonl").read_text().splitlines()) == 2
    resumed = evolve(scorer, folder, budget, settings)
    assert torch.equal(resumed.tables, whole.tables)
    assert torch.equal(resumed.scores, whole.scores)
    with pytest.raises(ScheduleError, match="belongs to a search with another population: choose another"):
        evolve(scorer, folder, budget, replace(settings, population=7))
    elsewhere = replace(space, recording=replace(space.recording, noise_scheduler="Other"))
    with pytest.raises(ScheduleError, match="belongs to a search with another noise scheduler: choose"):
        evolve(Scorer(pipe, calls(), elsewhere), folder, budget, settings)
    with torch.no_grad():
        next(pipe.transformer.parameters()).mul_(2)
    with pytest.raises(ScheduleError, match="belongs to a search with another networks: choose"):
        evolve(scorer, folder, budget, settings)


def test_a_front_is_nowhere_worse_than_the_start_of_its_search(tmp_path: Path) -> None:
    pipe, space = recorded_space()
    begin = every(STEPS, 1, 2)
    begin[1] = True  # no seed of its own
    scorer = Scorer(pipe, calls(), space, loss=partial(minus_psnr))  # any callable will do
    search = evolve(scorer, tmp_path, Budget(generations=1), begin=begin.unsqueeze(0))
    assert torch.equal(search.tables[0], begin)
    within_it = search.front.scores[:, 1] <= search.scores[0, 1]
    assert search.front.scores[within_it, 0].min() <= search.scores[0, 0]
    with pytest.raises(ScheduleError, match="belongs to a search with another begin: choose"):
        evolve(scorer, tmp_path, Budget(generations=2))


def test_a_budget_without_a_bound_is_refused() -> None:
    with pytest.raises(ConfigError, match="give a positive number of generations, candidates or minutes"):
        Budget()
