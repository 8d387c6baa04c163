"""Schedules: frozen runs replay exactly, files are checked field by field, another run is refused or resampled."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from zoo.pipelines import CASES

from diffcache import CacheConfig, EasyCacheConfig, Schedule, UniformConfig, accelerate, report
from diffcache.schedulers.artifact import JSON_NAME, TENSORS_NAME
from diffcache.schedulers.errors import ConfigError, ScheduleError

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


def test_a_watched_run_replays_its_holds() -> None:
    case = CASES["FluxPipeline"]
    pipe = case.build()
    accelerate(pipe, "uniform", interval=3, order=2, warmup_steps=3, watch_bound=10.0)
    picture = case.render(pipe, seed=4, steps=12)
    schedule = report(pipe).to_schedule()
    accelerate(pipe, schedule)
    assert torch.equal(case.render(pipe, seed=4, steps=12), picture)


def test_a_saved_schedule_loads_in_a_fresh_process(flux: Any, tmp_path: Path) -> None:
    _, _, schedule = flux
    with_tensors = replace(
        schedule, corrections={"a": torch.ones(9, 4), "b": torch.zeros(9)}, fitted_with="eight prompts"
    )
    with_tensors.save_pretrained(tmp_path)
    code = (
        f"from diffcache import Schedule; s = Schedule.from_pretrained({str(tmp_path)!r}); "
        "print(s.decisions.tolist(), s.corrections['a'].sum().item(), s.fitted_with)"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed == f"{schedule.decisions.tolist()} 36.0 eight prompts\n"
    assert with_tensors.diff(Schedule.from_pretrained(tmp_path)) == ""


def corrupt(folder: Path, change: Any) -> None:
    data = json.loads((folder / JSON_NAME).read_text())
    change(data)
    (folder / JSON_NAME).write_text(json.dumps(data))


CORRUPTIONS: dict[str, tuple[Any, str]] = {
    "future version": (lambda d: d.update(format=99), "format"),
    "missing field": (lambda d: d.pop("producer"), "producer"),
    "wrong kind": (lambda d: d.update(table=[1]), "table"),
    "short row": (lambda d: d["table"]["transformer"].update(cond="##"), "table.transformer.cond"),
    "unknown mark": (lambda d: d["table"]["transformer"].update(cond="?" * 9), "table.transformer.cond"),
    "no site": (lambda d: d["table"].clear(), "table"),
    "NaN noise level": (lambda d: d["noise_scheduler"]["sigmas"].__setitem__(0, float("nan")), "sigmas"),
    "few noise levels": (lambda d: d["noise_scheduler"]["sigmas"].pop(), "sigmas"),
    "shape that is none": (
        lambda d: d["models"]["transformer"].update(latents=["a"]),
        "models.transformer.latents",
    ),
    "coefficients' shape": (lambda d: d["corrections"].update(a=[3]), "corrections.a"),
    "coefficients that are not there": (lambda d: d["corrections"].update(z=[3]), "corrections.z"),
}


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_a_corrupted_file_names_field_and_file(flux: Any, tmp_path: Path, corruption: str) -> None:
    change, field = CORRUPTIONS[corruption]
    replace(flux[2], corrections={"a": torch.ones(9, 4)}).save_pretrained(tmp_path)
    corrupt(tmp_path, change)
    with pytest.raises(ScheduleError) as error:
        Schedule.from_pretrained(tmp_path)
    assert field in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_truncated_files_and_nan_coefficients_are_refused(flux: Any, tmp_path: Path) -> None:
    schedule = replace(flux[2], corrections={"a": torch.ones(9, 4)})
    schedule.save_pretrained(tmp_path)
    tensors = (tmp_path / TENSORS_NAME).read_bytes()
    (tmp_path / TENSORS_NAME).write_bytes(tensors[: len(tensors) // 2])
    with pytest.raises(ScheduleError, match=f"{TENSORS_NAME}: corrections"):
        Schedule.from_pretrained(tmp_path)
    (tmp_path / JSON_NAME).write_text((tmp_path / JSON_NAME).read_text()[:100])
    with pytest.raises(ScheduleError, match=f"{JSON_NAME}: not JSON"):
        Schedule.from_pretrained(tmp_path)
    with pytest.raises(ScheduleError, match=r"corrections\.a"):
        replace(schedule, corrections={"a": torch.tensor([float("nan")])})
    with pytest.raises(ScheduleError, match="no such file"):
        Schedule.from_pretrained(tmp_path / "..")


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


def test_what_differs_is_said_line_by_line(flux: Any) -> None:
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
def test_a_run_with_sites_inside_replays_exactly(name: str, site: str, tmp_path: Path) -> None:
    case = CASES[name]
    pipe = case.build()
    accelerate(pipe, "uniform", interval=2, order=1, site=site)
    picture, found = case.render(pipe, seed=4, steps=9), report(pipe)
    assert 0 < found.compute_fraction < 1
    accelerate(pipe, str(found.to_schedule().save_pretrained(tmp_path)))
    assert torch.equal(case.render(pipe, seed=4, steps=9), picture)
    assert torch.equal(report(pipe).decisions, found.decisions)
    assert report(pipe).compute_fraction == found.compute_fraction


@pytest.mark.parametrize("site", ["transformer_blocks.99", "nowhere", "transformer_blocks.0..nowhere.1"])
def test_a_site_that_does_not_exist_is_refused_at_once(flux: Any, site: str) -> None:
    pipe, _, schedule = flux
    table = {f"transformer.{site}": next(iter(schedule.table.values()))}
    with pytest.raises(ScheduleError, match=r"table\.transformer\..* no such place"):
        accelerate(pipe, replace(schedule, table=table))


@pytest.mark.parametrize(
    "predictor",
    [
        {"name": "polynomial", "order": -1, "axis": "tick"},
        {"name": "crystal ball"},
        {"name": "hold", "basis": "sand"},
    ],
)
def test_a_predictor_that_is_none_is_refused_at_once(flux: Any, predictor: dict[str, Any]) -> None:
    pipe, _, schedule = flux
    with pytest.raises(ScheduleError, match="predictor"):
        accelerate(pipe, replace(schedule, predictor=predictor))


def test_runs_that_cannot_be_frozen_say_so() -> None:
    case = CASES["FluxPipeline"]
    pipe = accelerate(case.build(), "easycache", per_sample=True, threshold=0.0)
    with pytest.raises(ScheduleError, match="one denoising loop"):
        report(pipe).to_schedule()


def test_configs_are_saved_and_loaded(tmp_path: Path) -> None:
    for config in (EasyCacheConfig(threshold=0.07), UniformConfig(interval=3, order=2, axis="tick")):
        config.save_pretrained(tmp_path)
        assert CacheConfig.from_pretrained(tmp_path) == config
        assert type(config).from_pretrained(tmp_path) == config
    with pytest.raises(ConfigError, match="uniform"):
        EasyCacheConfig.from_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="no such file"):
        CacheConfig.from_pretrained(tmp_path / "..")
