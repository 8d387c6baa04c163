"""Schedules as files: what was decided as JSON, and the values of corrections beside it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from diffcache.schedulers.artifact import (
    CONFIG_NAME,
    FORMAT,
    JSON_NAME,
    TENSORS_NAME,
    Fields,
    find,
    json_text,
    read_json,
    tell_of,
)
from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.whole_files import written_whole

T = TypeVar("T")


def as_json(schedule: Any) -> dict[str, Any]:
    """The schedule without the values of its corrections."""
    return {
        "format": FORMAT,
        "models": {
            site: {
                "class": model.name,
                "config": model.config,
                "latents": [list(shape) for shape in model.latents],
            }
            for site, model in schedule.models.items()
        },
        "noise_scheduler": {
            "class": schedule.noise_scheduler,
            "num_ticks": schedule.num_ticks,
            "sigmas": None if schedule.sigmas is None else list(schedule.sigmas),
        },
        "table": {site: dict(rows) for site, rows in schedule.table.items()},
        "predictor": dict(schedule.predictor),
        "corrections": {name: list(tensor.shape) for name, tensor in schedule.corrections.items()},
        "fitted_with": schedule.fitted_with,
        "quantization": dict(schedule.quantization),
        "producer": dict(schedule.producer),
        "measured": dict(schedule.measured),
    }


def save(schedule: Any, folder: Path) -> Path:
    """Writes a schedule into a folder, and returns that. If it cannot be written, what was there stays."""
    folder.mkdir(parents=True, exist_ok=True)
    tell_of(CONFIG_NAME, folder)
    tensors = {name: tensor.contiguous() for name, tensor in schedule.corrections.items()}
    with written_whole(folder / JSON_NAME) as text:
        text.write_text(json_text(as_json(schedule)))
        if tensors:
            with written_whole(folder / TENSORS_NAME) as values:
                save_file(tensors, values)
    if not tensors:
        (folder / TENSORS_NAME).unlink(missing_ok=True)
    return folder


def load(name: str | Path, make: Callable[..., T]) -> T:
    """Reads a schedule from a folder, or else from the hub.

    Args:
        name: of the folder, or hub id.
        make: makes the schedule of its fields; a model is given as class, configuration hash and latents' shapes.

    Raises:
        ScheduleError: a field is missing or wrong; the message names the field and the file.
    """
    try:
        return _read(find(name, JSON_NAME), lambda: find(name, TENSORS_NAME), make)
    except FileNotFoundError as error:
        raise ScheduleError(f"{error}.") from error


def made_of(data: Mapping[str, Any], corrections: Mapping[str, Tensor], make: Callable[..., T]) -> T:
    """The schedule of what `as_json` returned, and the values of its corrections.

    Raises:
        ScheduleError: a field is missing or wrong.
    """
    return _made(data, Path("the schedule"), lambda _: dict(corrections), make)


def _read(path: Path, tensors_path: Callable[[], Path], make: Callable[..., T]) -> T:
    return _made(read_json(path), path, lambda shapes: _tensors(tensors_path(), shapes), make)


def _made(
    data: Any,
    path: Path,
    corrections: Callable[[dict[str, list[int]]], dict[str, Tensor]],
    make: Callable[..., T],
) -> T:
    fields = Fields(data, path)
    version = fields("format", int)
    if version != FORMAT:
        raise ScheduleError(
            f"{path}: format: this is version {version}, which needs another diffcache (this: {FORMAT})."
        )
    shapes = fields("corrections", dict)
    try:
        return make(
            models={site: _model(site, model, path) for site, model in fields("models", dict).items()},
            table=_table(fields("table", dict), fields("noise_scheduler.num_ticks", int), path),
            noise_scheduler=fields("noise_scheduler.class", str, None),
            sigmas=_sigmas(fields("noise_scheduler.sigmas", list, None), path),
            predictor=fields("predictor", dict),
            corrections=corrections(shapes) if shapes else {},
            fitted_with=fields("fitted_with", str, None),
            quantization=_texts(fields("quantization", dict, None) or {}),
            producer=fields("producer", dict),
            measured=fields("measured", dict),
        )
    except ScheduleError as error:
        raise error if str(path.parent) in str(error) else ScheduleError(f"{path}: {error}") from error


def _model(site: str, data: Any, path: Path) -> tuple[str, str, tuple[tuple[int, ...], ...]]:
    fields = Fields(data, path)
    latents = fields("latents", list)
    if not all(isinstance(shape, list) and all(type(n) is int for n in shape) for shape in latents):
        raise ScheduleError(f"{path}: models.{site}.latents: must be lists of whole numbers.")
    return fields("class", str), fields("config", str), tuple(map(tuple, latents))


def _table(data: dict[str, Any], num_ticks: int, path: Path) -> dict[str, dict[str, str]]:
    for site, rows in data.items():
        if not isinstance(rows, dict) or not all(isinstance(marks, str) for marks in rows.values()):
            raise ScheduleError(f"{path}: table.{site}: must hold one string of marks for each branch.")
        for branch, marks in rows.items():
            if len(marks) != num_ticks:
                raise ScheduleError(
                    f"{path}: table.{site}.{branch}: {len(marks)} ticks instead of {num_ticks}."
                )
    return data


def _texts(data: dict[str, Any]) -> dict[str, str]:
    if not all(isinstance(value, str) for value in data.values()):
        raise ScheduleError("quantization: must hold a text for each denoiser.")
    return data


def _sigmas(data: list[Any] | None, path: Path) -> tuple[float, ...] | None:
    if data is None:
        return None
    if not all(isinstance(sigma, (int, float)) for sigma in data):
        raise ScheduleError(f"{path}: noise_scheduler.sigmas: must be numbers.")
    return tuple(float(sigma) for sigma in data)


def _tensors(path: Path, shapes: dict[str, list[int]]) -> dict[str, Tensor]:
    try:
        tensors = load_file(path)
    except (FileNotFoundError, SafetensorError) as error:
        raise ScheduleError(f"{path}: corrections: missing, or cut short ({error}).") from error
    for name, shape in shapes.items():
        if name not in tensors or list(tensors[name].shape) != shape:
            raise ScheduleError(f"{path}: corrections.{name}: missing, or not of shape {shape}.")
        if not torch.isfinite(tensors[name]).all():
            raise ScheduleError(f"{path}: corrections.{name}: a coefficient is not finite.")
    return {name: tensors[name] for name in shapes}
