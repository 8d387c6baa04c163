"""Schedules and configs as files: they are read back as written, and checked field by field."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.searches.flux_calls import FLUX

from diffcache import CacheConfig, EasyCacheConfig, Schedule, UniformConfig, accelerate, report
from diffcache.schedulers import schedule_file
from diffcache.schedulers.artifact import JSON_NAME, TENSORS_NAME
from diffcache.schedulers.errors import ConfigError, ScheduleError


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    pipe = accelerate(FLUX.build(), "easycache", threshold=0.3, warmup_steps=1)
    FLUX.render(pipe, seed=4, steps=9)
    frozen: Schedule = report(pipe).to_schedule()
    return frozen


def test_a_saved_schedule_loads_in_a_fresh_process(schedule: Schedule, tmp_path: Path) -> None:
    with_tensors = replace(
        schedule,
        producer={**schedule.producer, "ticks": (0, 4)},  # which JSON keeps as a list
        corrections={"a": torch.ones(9, 4), "b": torch.zeros(9)},
        fitted_with="eight prompts",
    )
    with_tensors.save_pretrained(tmp_path)
    code = (
        f"from diffcache import Schedule; s = Schedule.from_pretrained({str(tmp_path)!r}); "
        "print(s.decisions.tolist(), s.corrections['a'].sum().item(), s.fitted_with)"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed == f"{schedule.decisions.tolist()} 36.0 eight prompts\n"
    assert with_tensors.diff(Schedule.from_pretrained(tmp_path)) == ""


def test_a_saved_schedule_is_equal_to_itself(schedule: Schedule, tmp_path: Path) -> None:
    written = replace(
        schedule,
        producer={**schedule.producer, "options": {"window": (0.1, 0.8)}},
        measured={"psnr": float("nan")},
        corrections={"a": torch.ones(9, 4)},
    )
    read = Schedule.from_pretrained(written.save_pretrained(tmp_path))
    assert read == written
    assert read != replace(written, corrections={"a": torch.zeros(9, 4)})
    assert read != replace(written, producer=schedule.producer)
    assert read != "a schedule"


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
def test_the_error_about_a_corrupted_file_names_field_and_file(
    schedule: Schedule, tmp_path: Path, corruption: str
) -> None:
    change, field = CORRUPTIONS[corruption]
    replace(schedule, corrections={"a": torch.ones(9, 4)}).save_pretrained(tmp_path)
    corrupt(tmp_path, change)
    with pytest.raises(ScheduleError) as error:
        Schedule.from_pretrained(tmp_path)
    assert field in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_truncated_files_and_nan_coefficients_are_refused(schedule: Schedule, tmp_path: Path) -> None:
    with_tensors = replace(schedule, corrections={"a": torch.ones(9, 4)})
    with_tensors.save_pretrained(tmp_path)
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


def test_configs_are_saved_and_loaded(tmp_path: Path) -> None:
    for config in (EasyCacheConfig(threshold=0.07), UniformConfig(interval=3, order=2, axis="tick")):
        config.save_pretrained(tmp_path)
        assert CacheConfig.from_pretrained(tmp_path) == config
        assert type(config).from_pretrained(tmp_path) == config
    with pytest.raises(ConfigError, match="uniform"):
        EasyCacheConfig.from_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="no such file"):
        CacheConfig.from_pretrained(tmp_path / "..")


def test_a_schedule_that_cannot_be_written_leaves_the_older_one(
    schedule: Schedule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = replace(schedule, corrections={"a": torch.ones(9, 4)})
    older.save_pretrained(tmp_path)

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(schedule_file, "save_file", full)
    with pytest.raises(OSError, match="no space"):
        replace(older, corrections={"a": torch.zeros(9, 4)}, measured={}).save_pretrained(tmp_path)
    assert Schedule.from_pretrained(tmp_path) == older
    assert {path.name for path in tmp_path.iterdir()} == {JSON_NAME, TENSORS_NAME}


def test_a_schedule_without_coefficients_leaves_none_of_the_older_one(
    schedule: Schedule, tmp_path: Path
) -> None:
    replace(schedule, corrections={"a": torch.ones(9, 4)}).save_pretrained(tmp_path)
    schedule.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {JSON_NAME}
