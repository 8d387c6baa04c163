"""Dynamic programming from recordings: its schedules keep their budgets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.searches.flux_calls import FLUX
from support.searches.recordings import drift_by_distance
from support.searches.spaces import STEPS, made_up_space, recorded_space

from diffcache import accelerate, report
from diffcache.prediction.predictors import DEGREE
from diffcache.profiling.searching.dynamic_programming import (
    VARIANTS,
    bac_table,
    cosine_bac,
    dynamic_programming,
)
from diffcache.profiling.searching.evolving import seeds
from diffcache.profiling.searching.space import EXTRAPOLATE, HOLD
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.response import PictureResponse


@pytest.mark.parametrize("sites", ["model", "sub-layer"])
def test_a_run_costs_what_the_space_says(sites: str) -> None:
    pipe, space = recorded_space(sites)
    for variant in VARIANTS:
        schedule = dynamic_programming(space, 0.5, variant)
        accelerate(pipe, schedule)
        FLUX.render(pipe, 0, STEPS)
        assert report(pipe).compute_fraction == pytest.approx(schedule.measured["compute_fraction"], abs=1e-4)
        assert report(pipe).compute_fraction <= 0.5 + 1e-6


def test_a_budget_below_one_tick_and_an_unknown_variant_are_refused() -> None:
    _, space = recorded_space()
    with pytest.raises(ConfigError, match=r"compute: 0.1 does not pay for one tick; give at least 0\.17"):
        dynamic_programming(space, 0.1)
    with pytest.raises(ConfigError, match="variant: 'best' is not one of shared, per-site, bac"):
        dynamic_programming(space, 0.5, "best")


@pytest.mark.parametrize("predictor", [HOLD, EXTRAPOLATE])
@pytest.mark.parametrize("hindsight", [0, DEGREE])
@pytest.mark.parametrize("ticks", [2, 4, 12])
def test_short_runs_have_a_schedule_for_every_share(predictor: Any, hindsight: int, ticks: int) -> None:
    drift = drift_by_distance(ticks)
    response = PictureResponse(
        torch.ones(ticks, 1).double(), drift.nan_to_num(0.0).mT, predictor.get("order", 0), hindsight
    )
    space = made_up_space(drift, predictor, response=response)
    for count in range(1, ticks + 1):
        assert int(dynamic_programming(space, count / ticks).decisions.sum()) == count
    assert bool(seeds(space)[:, 0].all())


def test_bac_as_published_computes_more_than_its_updates_and_within_a_share_as_much_as_fits() -> None:
    _, space = recorded_space("sub-layer")
    prices, repaired = torch.tensor(space.prices), space.kinds.count("feed-forward")
    alone, united = (bac_table(space, 3, n) for n in (0, repaired))
    assert alone.sum(0).tolist() == [3] * len(space.sites)
    assert bool((united >= alone).all())
    assert int(united.sum()) > int(alone.sum())
    for n in (0, repaired):
        table = cosine_bac(space, 0.5, n)
        assert int((table.sum(0) * prices).sum()) <= space.budget(0.5)
