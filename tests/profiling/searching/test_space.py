"""Search spaces: what they make of a recording."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.searches.recordings import curve_of, drift_by_distance
from support.searches.spaces import made_up_space, recorded_space

from diffcache.profiling.recording.recording import RecordedSite, Recording
from diffcache.profiling.searching.space import EXTRAPOLATE, HOLD, Space
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.schedule import ALL


def test_a_space_needs_the_drift_between_all_ticks() -> None:
    assert made_up_space(drift_by_distance(4)).drifts[0, 1].tolist() == [0, 0, 1, 2]
    holed = drift_by_distance(4)
    holed[3, 0] = torch.nan
    with pytest.raises(ConfigError, match="net was not called or not compared at every tick"):
        made_up_space(holed)


@pytest.mark.parametrize("compute", [0.0, -1.0, 2.0, float("nan")])
def test_what_is_no_share_has_no_budget(compute: float) -> None:
    with pytest.raises(ConfigError, match="must be a share of the full run's work"):
        made_up_space(drift_by_distance(4)).budget(compute)


def test_a_space_of_sub_layers_has_no_hindsight() -> None:
    _, space = recorded_space("sub-layer")
    with pytest.raises(ConfigError, match="predictor: hindsight corrects whole denoisers only"):
        replace(space, predictor={**HOLD, "hindsight": True})


def test_in_a_table_of_given_ticks_all_sites_compute_there_and_nowhere_else() -> None:
    drift = drift_by_distance(4)
    curves = {(name, "0"): curve_of(drift) for name in ("net.a", "net.b")}
    sites = {"net.a": RecordedSite("attention", 30.0), "net.b": RecordedSite("feed-forward", 10.0)}
    space = Space(Recording({}, None, None, curves, sites=sites, rest=10.0))
    table = space.together(iter([0, 3]))
    assert table.tolist() == [[True, True], [False, False], [False, False], [True, True]]
    assert float(space.compute(table)) == pytest.approx((2 * 50 + 2 * 10) / (4 * 50))
    assert space.schedule(table, {}).table == {"net.a": {ALL: "#--#"}, "net.b": {ALL: "#--#"}}


def test_sensitivity_multiplies_squared_drifts_and_extrapolation_errs_faster_with_distance() -> None:
    sensitivity = torch.tensor([[0.0, 1.0, 2.0, 10.0]], dtype=torch.float64)
    held = made_up_space(drift_by_distance(4), sensitivity=sensitivity)
    assert held.drifts[0, 0].tolist() == [0, 1, 2 * 4, 10 * 9]
    drawn = made_up_space(drift_by_distance(4), EXTRAPOLATE, sensitivity=sensitivity)
    assert drawn.drifts[0, 0].tolist() == [0, 1, 2 * (2 * 1.5) ** 2, 10 * (3 * 2.0) ** 2]
