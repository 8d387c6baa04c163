"""Fronts are written as schedules that replay."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.searches.flux_calls import FLUX
from support.searches.recordings import drift_by_distance
from support.searches.spaces import STEPS, calls, made_up_space, recorded_space

from diffcache import Schedule, accelerate, report
from diffcache.profiling.searching.evolving import Budget, EvolutionSettings, evolve
from diffcache.profiling.searching.fronts import best_within, saved_schedules, write_front
from diffcache.profiling.searching.scoring import Scorer
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.evolution import Evolution


def test_a_front_is_written_as_schedules_that_replay(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pipe, space = recorded_space()
    scorer = Scorer(pipe, calls(), space)
    search = evolve(scorer, tmp_path, Budget(generations=2), EvolutionSettings(children=3))
    folders = write_front(search, space, tmp_path)
    assert (tmp_path / "front.png").stat().st_size > 0
    loaded = [Schedule.from_pretrained(folder) for folder in folders]
    shares = [schedule.measured["compute_fraction"] for schedule in loaded]
    assert shares == sorted(shares, reverse=True)
    accelerate(pipe, loaded[-1])
    FLUX.render(pipe, 3, STEPS)
    assert report(pipe).compute_fraction == pytest.approx(shares[-1], abs=1e-4)
    best = best_within(search, 0.5, 2)
    assert space.compute(best).max() <= 0.5
    affordable = search.scores[search.scores[:, 1] <= 0.5, 0]
    assert Scorer(pipe, calls(), space)(best)[:, 0].tolist() == affordable.sort().values[:2].tolist()
    with pytest.raises(ConfigError, match="the cheapest schedule of the search costs"):
        best_within(search, 0.01)


def test_a_front_replaces_an_earlier_one(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    _, space = recorded_space()
    tables = torch.stack([space.together(ticks) for ticks in ([0, 2, 4], [0, 3], [0])])
    search = Evolution(tables)
    search.tell(tables, torch.tensor([[-30.0, 0.5], [-20.0, 0.4], [-10.0, 0.2]]))
    assert len(write_front(search, space, tmp_path)) == 3
    better = space.together([0, 4])
    search.tell(better.unsqueeze(0), torch.tensor([[-40.0, 0.3]]))
    folders = write_front(search, space, tmp_path)
    assert sorted((tmp_path / "front").iterdir()) == folders
    assert len(folders) == 2


def test_saved_schedules_are_found_by_their_folders_but_not_those_of_a_front(tmp_path: Path) -> None:
    space = made_up_space(drift_by_distance(4))
    made = {name: space.schedule(space.together(ticks), {}) for name, ticks in (("b", [0]), ("a", [0, 2]))}
    for name, schedule in made.items():
        schedule.save_pretrained(tmp_path / name)
    made["b"].save_pretrained(tmp_path / "front" / "00")
    (tmp_path / "notes").mkdir()
    found = saved_schedules(tmp_path)
    assert list(found) == ["a", "b"]
    with pytest.raises(ConfigError, match="notes: no search saved a schedule there"):
        saved_schedules(tmp_path / "notes")
    assert all(not found[name].diff(made[name]) for name in found)
