"""Schedules: frozen runs replay exactly, and other runs are refused or resampled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from zoo.pipelines import CASES

from diffcache import Schedule, accelerate, report
from diffcache.schedulers.errors import ScheduleError

PIPELINES = [
    "DiTPipeline",
    "FluxPipeline-true-cfg",
    "WanPipeline-two-experts",
    "StableDiffusionPipeline",
    "LTX2Pipeline",
]


def recorded(name: str, **options: Any) -> tuple[Any, torch.Tensor, Schedule]:
    """A pipeline, what an adaptive run of it gave, and that run as a schedule."""
    case = CASES[name]
    pipe = case.build()
    accelerate(pipe, "easycache", **({"threshold": 0.3, "warmup_steps": 1} | options))
    return pipe, case.render(pipe, seed=4, steps=9), report(pipe).to_schedule()


@pytest.fixture(scope="module")
def flux() -> tuple[Any, torch.Tensor, Schedule]:
    return recorded("FluxPipeline")


@pytest.mark.parametrize("name", PIPELINES)
def test_a_frozen_adaptive_run_replays_exactly(name: str, tmp_path: Path) -> None:
    pipe, picture, schedule = recorded(name)
    decisions = report(pipe).decisions
    assert 0 < decisions.float().mean() < 1
    accelerate(pipe, schedule)
    assert torch.equal(CASES[name].render(pipe, seed=4, steps=9), picture)
    assert torch.equal(report(pipe).decisions, decisions)
    accelerate(pipe, str(schedule.save_pretrained(tmp_path)))
    assert torch.equal(CASES[name].render(pipe, seed=4, steps=9), picture)


def test_a_schedule_is_printed_as_one_line(flux: Any) -> None:
    schedule = replace(flux[2], measured={"compute_fraction": 0.25, "expected_error": 0.01})
    computed = len(schedule.computed_ticks)
    assert repr(schedule) == (
        "<Schedule by easycache for FluxTransformer2DModel, predictor hold: "
        f"{computed} of 9 ticks computed, 25.0% of the work, expected error 1.00%>"
    )
    assert str(schedule) == repr(schedule)


def test_a_schedule_without_figures_is_printed() -> None:
    schedule = Schedule(models={}, table={"net": {"all": "#-"}}, measured={"compute_fraction": None})
    assert repr(schedule) == "<Schedule by hand for any denoiser, predictor hold: 1 of 2 ticks computed>"


def test_a_watched_run_replays_where_it_held() -> None:
    case = CASES["FluxPipeline"]
    pipe = case.build()
    accelerate(pipe, "uniform", interval=3, order=2, warmup_steps=3, watch_bound=10.0)
    picture = case.render(pipe, seed=4, steps=12)
    schedule = report(pipe).to_schedule()
    accelerate(pipe, schedule)
    assert torch.equal(case.render(pipe, seed=4, steps=12), picture)


def test_another_model_is_refused_at_once_and_left_alone(flux: Any) -> None:
    schedule = flux[2]
    other, wan = CASES["FluxPipeline"].build(), CASES["WanPipeline"].build()
    other.transformer.register_to_config(num_layers=77)
    for pipe, message in ((other, "another configuration"), (wan, "FluxTransformer2DModel, not Wan")):
        before = type(pipe)
        with pytest.raises(ScheduleError, match=message):
            accelerate(pipe, schedule)
        assert type(pipe) is before
    unet = CASES["StableDiffusionPipeline"].build()
    with pytest.raises(ScheduleError, match="'transformer'"):
        accelerate(unet, schedule)


def test_another_run_is_refused_unless_it_may_be_resampled(flux: Any) -> None:
    pipe, _, schedule = flux
    case = CASES["FluxPipeline"]
    accelerate(pipe, schedule)
    with pytest.raises(ScheduleError, match="9 ticks and this run 12"):
        case.render(pipe, seed=4, steps=12)
    accelerate(pipe, schedule, resample=True)
    picture = case.render(pipe, seed=4, steps=12)
    assert torch.isfinite(picture).all()
    assert report(pipe).num_ticks == 12
    assert 0 < report(pipe).compute_fraction < 1


def test_resampling_takes_the_nearest_noise_level() -> None:
    models = {"transformer": next(iter(recorded("FluxPipeline")[2].models.values()))}
    schedule = Schedule(models, {"transformer": {"all": "#-#-"}}, sigmas=(1.0, 0.75, 0.5, 0.25))
    assert schedule.resampled(3, [0.98, 0.7, 0.3]).table["transformer"]["all"] == "#--"
    assert schedule.resampled(7).table["transformer"]["all"] == "".join(
        "#-#-"[round(i * 3 / 6)] for i in range(7)
    )


def test_two_schedules_are_compared_line_by_line(flux: Any) -> None:
    schedule = flux[2]
    other = replace(schedule, quantization={"transformer": "int8"})
    assert schedule.diff(other) == "quantization.transformer: None -> int8"


@pytest.mark.parametrize(
    ("name", "site"),
    [
        ("FluxPipeline", "sub-layer"),
        ("FluxPipeline", "stack[1..]"),
        ("WanPipeline", "attention"),
        ("StableDiffusionPipeline", "depth 1"),
        ("WanPipeline-two-experts", "stack"),
    ],
)
def test_a_run_with_inner_sites_replays_exactly(name: str, site: str, tmp_path: Path) -> None:
    case = CASES[name]
    pipe = case.build()
    accelerate(pipe, "uniform", interval=2, order=1, site=site)
    picture, found = case.render(pipe, seed=4, steps=9), report(pipe)
    assert 0 < found.compute_fraction < 1
    accelerate(pipe, str(found.to_schedule().save_pretrained(tmp_path)))
    assert torch.equal(case.render(pipe, seed=4, steps=9), picture)
    assert torch.equal(report(pipe).decisions, found.decisions)
    assert report(pipe).compute_fraction == found.compute_fraction


def test_a_whole_denoiser_beside_a_site_inside_it_is_refused_at_once(flux: Any) -> None:
    pipe, _, schedule = flux
    rows = next(iter(schedule.table.values()))
    both = replace(schedule, table={"transformer": rows, "transformer.transformer_blocks.1": rows})
    with pytest.raises(ScheduleError, match=r"the whole denoiser overlaps its site 'transformer_blocks\.1'"):
        accelerate(pipe, both)


@pytest.mark.parametrize("site", ["transformer_blocks.99", "nowhere", "transformer_blocks.0..nowhere.1"])
def test_a_site_that_does_not_exist_is_refused_at_once(flux: Any, site: str) -> None:
    pipe, _, schedule = flux
    table = {f"transformer.{site}": next(iter(schedule.table.values()))}
    with pytest.raises(ScheduleError, match=r"table\.transformer\..* no such site"):
        accelerate(pipe, replace(schedule, table=table))


@pytest.mark.parametrize(
    "predictor",
    [
        {"name": "polynomial", "order": -1, "axis": "tick"},
        {"name": "crystal ball"},
        {"name": "hold", "basis": "sand"},
    ],
)
def test_an_unknown_predictor_is_refused_at_once(flux: Any, predictor: dict[str, Any]) -> None:
    pipe, _, schedule = flux
    with pytest.raises(ScheduleError, match="predictor"):
        accelerate(pipe, replace(schedule, predictor=predictor))


def test_a_target_without_a_run_cannot_be_frozen() -> None:
    case = CASES["FluxPipeline"]
    pipe = accelerate(case.build(), "easycache", per_sample=True, threshold=0.0)
    with pytest.raises(ScheduleError, match="call the pipeline first"):
        report(pipe).to_schedule()


@pytest.mark.parametrize(
    ("stored", "expected"),
    [(0.01, 0.01), (0, 0.0), (1, 1.0), (None, None), ("x", None), (True, None), (-0.1, None), (float("nan"), None), (float("inf"), None)],
)  # fmt: skip
def test_an_expected_error_is_a_number_or_nothing(stored: object, expected: float | None) -> None:
    plain = Schedule(models={}, table={"net": {"all": "#-"}})
    assert replace(plain, measured={"expected_error": stored}).expected_error == expected
    assert plain.expected_error is None
