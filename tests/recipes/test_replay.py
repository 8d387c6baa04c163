"""Replaying a schedule: options that compute more ticks than it does, what is refused of it, and another scale of guidance than its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from zoo.pipelines import CASES

from diffcache import Schedule, accelerate, report
from diffcache.config import RunFacts
from diffcache.profiling.recording.covariance import covariance_of
from diffcache.recipes.other_runs import other_weights
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.reports.run_report import RunReport
from diffcache.schedulers.errors import ConfigError, ScheduleError
from diffcache.schedulers.moments import angles_of
from diffcache.schedulers.schedule import GUIDANCE_OPTIONS, GUIDANCE_SCALE, INFLUENCE

SD, STEPS = CASES["StableDiffusionPipeline"], 10
MADE_AT = 3.0


def run(schedule: Schedule | None, guidance_scale: float, **options: Any) -> RunReport:
    """A run by a schedule, or by the method that one is made from."""
    pipe = SD.build()
    pipe = accelerate(pipe, speedup=2) if schedule is None else accelerate(pipe, schedule, **options)
    SD.render(pipe, 0, STEPS, guidance_scale=guidance_scale)
    return report(pipe)


def test_a_schedule_is_for_the_scale_of_guidance_that_it_was_made_at() -> None:
    schedule = run(None, MADE_AT).to_schedule()
    assert schedule.expected_error is not None
    same, other = run(schedule, MADE_AT), run(schedule, 7.0)
    assert other.computed_ticks == same.computed_ticks == schedule.computed_ticks
    assert same.expected_error == schedule.expected_error
    assert not any("guidance scale" in note for note in same.notes)
    assert other.expected_error is None
    assert any("made with a guidance scale of 3, and this run has 7" in note for note in other.notes)


def test_one_that_is_planned_anew_at_another_scale_expects_no_error() -> None:
    pipe = SD.build()
    call = {**SD.call(0, STEPS), "guidance_scale": MADE_AT}
    found = covariance_of(pipe, [call])
    own = TrajectoryConfig(
        speedup=2,
        covariance=tuple(map(tuple, found.matrix.tolist())),
        angles=angles_of(found.moments),
        amplification=found.amplification,
    )
    accelerate(pipe, own)
    SD.render(pipe, 0, STEPS, guidance_scale=MADE_AT)
    schedule = report(pipe).to_schedule()
    expected = {}
    for scale in (MADE_AT, 7.0):
        accelerate(pipe, schedule, resample=True)
        SD.render(pipe, 0, STEPS + 4, guidance_scale=scale)
        (note,) = (note for note in report(pipe).notes if "planned anew for 14 ticks" in note)
        assert ("made with a guidance scale of 3" in note) is (scale != MADE_AT)
        expected[scale] = report(pipe).expected_error
    assert expected[MADE_AT] is not None
    assert expected[7.0] is None
    accelerate(pipe, replace(schedule, quantization={"unet": "int8"}), resample=True)
    SD.render(pipe, 0, STEPS + 4, guidance_scale=MADE_AT)
    assert report(pipe).expected_error is None
    assert any("made with weights in int8" in note for note in report(pipe).notes)


@pytest.mark.parametrize("resample", [True, False])
def test_one_that_does_not_say_its_scale_is_replayed_as_it_is(resample: bool) -> None:
    schedule = run(None, MADE_AT).to_schedule()
    for key in (GUIDANCE_SCALE, GUIDANCE_OPTIONS):
        del schedule.predictor[key]  # type: ignore[attr-defined]
    told = run(schedule, 7.0, resample=resample)
    assert told.expected_error == schedule.expected_error
    assert not any("guidance scale" in note for note in told.notes)


@pytest.fixture(scope="module")
def sparse() -> Schedule:
    """Every fourth tick of ten, and the last one."""
    pipe = accelerate(SD.build(), "uniform", interval=4)
    SD.render(pipe, 0, STEPS)
    return report(pipe).to_schedule()


@pytest.mark.parametrize(
    ("options", "computed"),
    [
        ({}, [0, 4, 8, 9]),
        ({"warmup_steps": 3}, [0, 1, 2, 4, 8, 9]),
        ({"tail_steps": 4}, [0, 4, 6, 7, 8, 9]),
        ({"max_consecutive_reuses": 2}, [0, 3, 4, 7, 8, 9]),
    ],
    ids=str,
)
def test_guards_compute_more_than_the_schedule(
    sparse: Schedule, options: dict[str, int], computed: list[int], tmp_path: Path
) -> None:
    assert run(sparse, MADE_AT, **options).computed_ticks == computed
    sparse.save_pretrained(tmp_path)
    pipe = accelerate(SD.build(), "ertacache", calibration=tmp_path, **options)
    SD.render(pipe, 0, STEPS)
    assert report(pipe).computed_ticks == computed


def test_an_interval_of_1_computes_everything_and_others_do_not_go_with_a_calibration(
    sparse: Schedule, tmp_path: Path
) -> None:
    sparse.save_pretrained(tmp_path)
    pipe = accelerate(SD.build(), "ertacache", calibration=tmp_path, interval=1)
    SD.render(pipe, 0, STEPS)
    assert report(pipe).compute_fraction == 1
    with pytest.raises(ConfigError, match="interval=3 is for an even schedule"):
        accelerate(SD.build(), "ertacache", calibration=tmp_path, interval=3)


@pytest.mark.parametrize("option", ["resample", "rectify", "respace"])
def test_switches_are_true_or_false(sparse: Schedule, option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} must be one of True, False, not 'no'"):
        accelerate(SD.build(), sparse, **{option: "no"})


@pytest.mark.parametrize("scale", ["x", [], float("nan"), True], ids=str)
def test_a_guidance_scale_that_is_no_number_is_refused(sparse: Schedule, scale: Any) -> None:
    wrong = replace(sparse, predictor={**sparse.predictor, "guidance_scale": scale})
    with pytest.raises(ScheduleError, match=r"predictor.guidance_scale: must be a finite number"):
        accelerate(SD.build(), wrong)


def test_noise_levels_that_rise_are_refused(sparse: Schedule) -> None:
    wrong = replace(sparse, corrections={"sigmas": torch.arange(float(STEPS))})
    with pytest.raises(ScheduleError, match="must not rise during a run"):
        accelerate(SD.build(), wrong)


@pytest.mark.parametrize("back", [1.5, -1, True], ids=str)
def test_a_slope_that_looks_back_by_no_whole_number_of_ticks_is_refused(sparse: Schedule, back: Any) -> None:
    predictor = {"name": "average velocity", "levels": [1.0, 0.5, 0.0], "backs": [0, back]}
    with pytest.raises(ScheduleError, match="is not a predictor"):
        accelerate(SD.build(), replace(sparse, predictor=predictor))


def replaying(case: str, made_at: dict[str, float]) -> Any:
    """A pipeline with the schedule of a run with these options, of which an error of 1 % was measured."""
    pipe = accelerate(CASES[case].build(), speedup=2)
    CASES[case].render(pipe, 0, STEPS, **made_at)
    schedule = replace(report(pipe).to_schedule(), measured={"expected_error": 0.01})
    return accelerate(pipe, schedule)


@pytest.mark.parametrize(
    ("case", "made_at", "other"),
    [
        ("FluxPipeline", {"guidance_scale": 3.5}, {"guidance_scale": 7.0}),
        ("StableDiffusionPipeline", {"guidance_rescale": 0.0}, {"guidance_rescale": 0.7}),
    ],
)
def test_an_option_of_guidance_that_is_no_scale_of_the_passes_counts_too(
    case: str, made_at: dict[str, float], other: dict[str, float]
) -> None:
    """FLUX.1 tells its scale to the network, and has one pass."""
    pipe = replaying(case, made_at)
    for options, expected in ((made_at, 0.01), (other, None)):
        CASES[case].render(pipe, 0, STEPS, **options)
        assert report(pipe).expected_error == expected
        name = next(iter(options))
        said = any(
            f"made with {name}=" in note or "made with a guidance" in note for note in report(pipe).notes
        )
        assert said is (expected is None)


@pytest.mark.parametrize(
    ("case", "made_at", "other"),
    [
        ("FluxPipeline", {}, {"true_cfg_scale": 4.0}),  # without a negative prompt it does nothing
        ("StableDiffusionPipeline", {"guidance_scale": 7.5}, {"guidance_scale": 7.52}),
        (
            "StableDiffusionPipeline",
            {"guidance_scale": 1.0},
            {"guidance_scale": 1.0, "guidance_rescale": 0.7},
        ),
        ("WanPipeline-two-experts", {}, {"guidance_scale_2": 5.0}),
    ],
)
def test_options_that_change_nothing_are_not_told(
    case: str, made_at: dict[str, float], other: dict[str, float]
) -> None:
    pipe = replaying(case, made_at)
    CASES[case].render(pipe, 0, STEPS, **other)
    assert report(pipe).expected_error == 0.01
    assert not any("made with" in note for note in report(pipe).notes)


def test_weights_in_another_format_are_told_and_expect_no_error() -> None:
    schedule = replace(run(None, MADE_AT).to_schedule(), measured={"expected_error": 0.01})
    made = replace(schedule, quantization={"unet": "51 x Int8Tensor with activations (56c98a65)"})
    told = run(made, MADE_AT)
    assert told.expected_error is None
    assert any(
        "made with weights in Int8Tensor with activations, and these are plain weights" in note
        for note in told.notes
    )
    assert run(schedule, MADE_AT).expected_error == 0.01


def test_the_same_format_in_other_layers_is_told() -> None:
    made = replace(run(None, MADE_AT).to_schedule(), quantization={"unet": "51 x Int8Tensor (56c98a65)"})
    facts = RunFacts("UNet2DConditionModel", denoiser="unet", quantization="9 x Int8Tensor (00000000)")
    said = other_weights(made, facts)
    assert said is not None
    assert "made with weights in Int8Tensor, and these are the same in other layers" in said


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (INFLUENCE, [0.1] * (STEPS - 1)),
        (INFLUENCE, "0.1"),
        (INFLUENCE, [None] * STEPS),
        (GUIDANCE_OPTIONS, {"guidance_rescale": "much"}),
        (GUIDANCE_OPTIONS, [1.0]),
    ],
)
def test_what_a_schedule_says_of_its_run_must_be_numbers(key: str, value: Any) -> None:
    schedule = run(None, MADE_AT).to_schedule()
    broken = replace(schedule, predictor={**schedule.predictor, key: value})
    with pytest.raises(ScheduleError, match=f"predictor.{key}: must hold"):
        accelerate(SD.build(), broken)


def test_a_resampled_schedule_says_nothing_of_the_steps_that_it_was_made_with(tmp_path: Path) -> None:
    other = run(None, MADE_AT).to_schedule().resampled(STEPS + 4)
    accelerate(SD.build(), Schedule.from_pretrained(other.save_pretrained(tmp_path)))
