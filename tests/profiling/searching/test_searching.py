"""Drivers of searches: what they make of a recording, what they render, and that they go on where they stopped."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from zoo.pipelines import CASES

from diffcache import Schedule, accelerate, report
from diffcache.prediction.hindsight import DEGREE
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.recording.record import record
from diffcache.profiling.recording.recording import Curve, Place, Recording
from diffcache.profiling.searching.dynamic import PLANS, dynamic_programming
from diffcache.profiling.searching.evolving import Budget, evolve, seeds
from diffcache.profiling.searching.fronts import saved, within, write_front
from diffcache.profiling.searching.polishing import polished
from diffcache.profiling.searching.probing import factors, probed
from diffcache.profiling.searching.space import EXTRAPOLATE, HOLD, Space
from diffcache.profiling.searching.trial import Trial, minus_psnr
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.errors import ConfigError, ScheduleError
from diffcache.schedulers.schedule import ALL
from diffcache.schedulers.search.evolution import Evolution
from diffcache.schedulers.search.response import Response
from diffcache.schedulers.search.seeds import every

FLUX = CASES["FluxPipeline"]
STEPS = 6


def calls() -> list[dict[str, Any]]:
    return [FLUX.call(0, STEPS)]


def space_of(sites: str = "model") -> tuple[Any, Space]:
    pipe = FLUX.build()
    return pipe, Space(record(pipe, calls(), sites=sites))


def made_up(drift: Tensor, predictor: Any = HOLD, **options: Any) -> Space:
    """A space of one place with these drifts, [tick, earlier tick]."""
    ones = torch.ones(len(drift), dtype=torch.float64)
    curves = {("net", "0"): Curve(drift, ones, ones, ones, runs=1)}
    return Space(
        Recording({}, None, None, curves, places={"net": Place("model", 100.0)}), predictor, **options
    )


def by_distance(ticks: int) -> Tensor:
    at = torch.arange(ticks, dtype=torch.float64)
    return (at.unsqueeze(1) - at).masked_fill(at.unsqueeze(1) <= at, torch.nan)


def test_a_space_reads_drifts_forwards_and_refuses_holes() -> None:
    assert made_up(by_distance(4)).drifts[0, 1].tolist() == [0, 0, 1, 2]
    holed = by_distance(4)
    holed[3, 0] = torch.nan
    with pytest.raises(ConfigError, match="net was not called or not compared at every tick"):
        made_up(holed)


def test_a_space_of_sub_layers_has_no_hindsight() -> None:
    _, space = space_of("sub-layer")
    with pytest.raises(ConfigError, match="predictor: hindsight amends whole denoisers only"):
        replace(space, predictor={**HOLD, "hindsight": True})


def test_together_all_places_compute_at_the_ticks_that_are_named_and_nowhere_else() -> None:
    drift = by_distance(4)
    ones = torch.ones(4, dtype=torch.float64)
    curves = {(name, "0"): Curve(drift, ones, ones, ones, runs=1) for name in ("net.a", "net.b")}
    places = {"net.a": Place("attention", 30.0), "net.b": Place("feed-forward", 10.0)}
    space = Space(Recording({}, None, None, curves, places=places, rest=10.0))
    table = space.together(iter([0, 3]))
    assert table.tolist() == [[True, True], [False, False], [False, False], [True, True]]
    assert float(space.compute(table)) == pytest.approx((2 * 50 + 2 * 10) / (4 * 50))
    assert space.schedule(table, {}).table == {"net.a": {ALL: "#--#"}, "net.b": {ALL: "#--#"}}


def test_sensitivity_weighs_squared_drifts_and_extrapolation_errs_faster_with_distance() -> None:
    sensitivity = torch.tensor([[0.0, 1.0, 2.0, 10.0]], dtype=torch.float64)
    held = made_up(by_distance(4), sensitivity=sensitivity)
    assert held.drifts[0, 0].tolist() == [0, 1, 2 * 4, 10 * 9]
    drawn = made_up(by_distance(4), EXTRAPOLATE, sensitivity=sensitivity)
    assert drawn.drifts[0, 0].tolist() == [0, 1, 2 * (2 * 1.5) ** 2, 10 * (3 * 2.0) ** 2]


def test_factors_explain_the_errors_of_places_and_ticks() -> None:
    generator = torch.Generator().manual_seed(0)
    squared = torch.rand(3, 8, generator=generator, dtype=torch.float64)
    u, v = torch.tensor([1.0, 3.0, 0.5]).double(), torch.arange(1.0, 9).double()
    squared[:, 0] = 0
    by_tick = v * (u @ squared)
    by_site = u * (squared[:, 1::2] @ v[1::2])
    found = factors(squared, by_tick, by_site)
    torch.testing.assert_close(found[:, 1:], (u.unsqueeze(1) * v)[:, 1:])


@pytest.mark.parametrize("sites", ["model", "sub-layer"])
def test_what_a_space_says_a_table_costs_is_what_the_run_costs(sites: str) -> None:
    pipe, space = space_of(sites)
    for plan in PLANS:
        schedule = dynamic_programming(space, 0.5, plan)
        accelerate(pipe, schedule)
        FLUX.render(pipe, 0, STEPS)
        assert report(pipe).compute_fraction == pytest.approx(schedule.measured["compute_fraction"], abs=1e-4)
        assert report(pipe).compute_fraction <= 0.5 + 1e-6


def test_a_budget_that_buys_nothing_and_an_unknown_plan_are_refused() -> None:
    _, space = space_of()
    with pytest.raises(ConfigError, match=r"compute: 0.1 does not pay for one tick; give at least 0\.17"):
        dynamic_programming(space, 0.1)
    with pytest.raises(ConfigError, match="plan: 'best' is not one of shared, per-site, bac"):
        dynamic_programming(space, 0.5, "best")


@pytest.mark.parametrize("predictor", [HOLD, EXTRAPOLATE])
@pytest.mark.parametrize("hindsight", [0, DEGREE])
@pytest.mark.parametrize("ticks", [2, 4, 12])
def test_short_runs_are_planned_for_every_share(predictor: Any, hindsight: int, ticks: int) -> None:
    drift = by_distance(ticks)
    response = Response(
        torch.ones(ticks, 1).double(), drift.nan_to_num(0.0).mT, predictor.get("order", 0), hindsight
    )
    space = made_up(drift, predictor, response=response)
    for count in range(1, ticks + 1):
        assert int(dynamic_programming(space, count / ticks).decisions.sum()) == count
    assert bool(seeds(space)[:, 0].all())


def test_computing_everything_loses_nothing_and_reuse_does() -> None:
    pipe, space = space_of()
    scores = Trial(pipe, calls(), space)(torch.stack([every(STEPS, 1, 1), every(STEPS, 1, 3)]))
    assert scores[0].tolist() == [-100, 1]
    assert scores[1, 0] > -100
    assert scores[1, 1] == pytest.approx(1 / 3)


def test_a_space_with_hindsight_is_probed_and_rendered_with_it() -> None:
    pipe, plain = space_of()
    amended = replace(plain, predictor={**HOLD, "hindsight": True})
    table = plain.together([0, 2, 4])
    pictures = [Trial(pipe, calls(), space).pictures(table) for space in (plain, amended)]
    by_hand = ReplayConfig(schedule=plain.schedule(table, {}), hindsight=True)
    assert torch.equal(pictures[1], FullRuns(pipe, calls()).cached(by_hand))
    assert not torch.equal(pictures[0], pictures[1])
    responses = [probed(pipe, calls(), space).response for space in (plain, amended)]
    assert [response.hindsight for response in responses if response] == [0, DEGREE]
    lengths = [response.moves.square().sum(1) for response in responses if response]
    assert not torch.allclose(lengths[0][1:-1], lengths[1][1:-1])


def test_an_evolution_that_died_in_a_generation_goes_on_to_the_same_front(tmp_path: Path) -> None:
    pipe, space = space_of()
    budget = Budget(generations=3)
    whole = evolve(pipe, calls(), space, tmp_path / "whole", budget, population=6, children=3, screened=False)
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
        evolve(pipe, calls(), space, folder, budget, population=6, children=3, screened=False, loss=dies)
    assert len((folder / "log.jsonl").read_text().splitlines()) == 2
    resumed = evolve(pipe, calls(), space, folder, budget, population=6, children=3, screened=False)
    assert torch.equal(resumed.tables, whole.tables)
    assert torch.equal(resumed.scores, whole.scores)
    with pytest.raises(ScheduleError, match="belongs to a search with another population: choose another"):
        evolve(pipe, calls(), space, folder, budget, population=7, children=3, screened=False)
    elsewhere = replace(space, recording=replace(space.recording, noise_scheduler="Other"))
    with pytest.raises(ScheduleError, match="belongs to a search with another noise scheduler: choose"):
        evolve(pipe, calls(), elsewhere, folder, budget, population=6, children=3, screened=False)


def test_a_front_is_written_as_schedules_that_replay(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pipe, space = space_of()
    search = evolve(pipe, calls(), space, tmp_path, Budget(generations=2), children=3)
    folders = write_front(search, space, tmp_path)
    assert (tmp_path / "front.png").stat().st_size > 0
    loaded = [Schedule.from_pretrained(folder) for folder in folders]
    shares = [schedule.measured["compute_fraction"] for schedule in loaded]
    assert shares == sorted(shares, reverse=True)
    accelerate(pipe, loaded[-1])
    FLUX.render(pipe, 3, STEPS)
    assert report(pipe).compute_fraction == pytest.approx(shares[-1], abs=1e-4)
    best = within(search, 0.5, 2)
    assert space.compute(best).max() <= 0.5
    affordable = search.scores[search.scores[:, 1] <= 0.5, 0]
    assert Trial(pipe, calls(), space)(best)[:, 0].tolist() == affordable.sort().values[:2].tolist()
    with pytest.raises(ConfigError, match="the cheapest schedule of the search costs"):
        within(search, 0.01)


def test_a_front_replaces_the_one_that_a_shorter_search_wrote(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    _, space = space_of()
    tables = torch.stack([space.together(ticks) for ticks in ([0, 2, 4], [0, 3], [0])])
    search = Evolution(tables)
    search.tell(tables, torch.tensor([[-30.0, 0.5], [-20.0, 0.4], [-10.0, 0.2]]))
    assert len(write_front(search, space, tmp_path)) == 3
    better = space.together([0, 4])
    search.tell(better.unsqueeze(0), torch.tensor([[-40.0, 0.3]]))
    folders = write_front(search, space, tmp_path)
    assert sorted((tmp_path / "front").iterdir()) == folders
    assert len(folders) == 2


def test_a_front_is_nowhere_worse_than_what_the_search_began_with(tmp_path: Path) -> None:
    pipe, space = space_of()
    begin = every(STEPS, 1, 2)
    begin[1] = True  # no seed of its own
    loss = partial(minus_psnr)  # any callable will do
    search = evolve(
        pipe, calls(), space, tmp_path, Budget(generations=1), loss=loss, begin=begin.unsqueeze(0)
    )
    assert torch.equal(search.tables[0], begin)
    within_it = search.front.scores[:, 1] <= search.scores[0, 1]
    assert search.front.scores[within_it, 0].min() <= search.scores[0, 0]
    with pytest.raises(ScheduleError, match="belongs to a search with another begin: choose"):
        evolve(pipe, calls(), space, tmp_path, Budget(generations=2), loss=loss)


def test_saved_schedules_are_found_by_their_folders_and_a_front_is_left_aside(tmp_path: Path) -> None:
    space = made_up(by_distance(4))
    made = {name: space.schedule(space.together(ticks), {}) for name, ticks in (("b", [0]), ("a", [0, 2]))}
    for name, schedule in made.items():
        schedule.save_pretrained(tmp_path / name)
    made["b"].save_pretrained(tmp_path / "front" / "00")
    (tmp_path / "notes").mkdir()
    found = saved(tmp_path)
    assert list(found) == ["a", "b"]
    with pytest.raises(ConfigError, match="notes: no search saved a schedule there"):
        saved(tmp_path / "notes")
    assert all(not found[name].diff(made[name]) for name in found)


def test_polishing_keeps_the_number_of_ticks_and_loses_to_neither_start() -> None:
    pipe, space = space_of()
    trial = Trial(pipe, calls(), space)
    late, even = torch.tensor(
        [[True, False, False, False, True, True], [True, False, True, False, False, True]]
    )
    table = polished(trial, late.unsqueeze(1), candidates=6)
    losses = trial(torch.stack([table, late.unsqueeze(1), even.unsqueeze(1)]))[:, 0]
    assert int(table.sum()) == 3
    assert losses[0] <= losses[1:].min()
    assert torch.equal(polished(trial, late.unsqueeze(1), candidates=1), late.unsqueeze(1))


def test_a_budget_needs_a_bound() -> None:
    with pytest.raises(ConfigError, match="give a positive number of generations, candidates or minutes"):
        Budget()
