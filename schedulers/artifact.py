"""Schedules and configs as files: JSON that people can read and compare, and tensors beside it. No pickle."""

import json
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from diffcache.schedulers.errors import ConfigError, ScheduleError

logger = logging.getLogger("diffcache")

T = TypeVar("T")

FORMAT = 1
"""Version of the files. Files of another version are refused."""

JSON_NAME = "cache_schedule.json"
TENSORS_NAME = "cache_schedule.safetensors"
CONFIG_NAME = "cache_config.json"


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


def json_text(data: Any) -> str:
    """JSON that every parser reads: null stands for a number that is not finite."""
    return json.dumps(plain(data), indent=1, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """The same in the types of JSON: lists for tuples, None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def save(schedule: Any, folder: Path) -> Path:
    """Writes a schedule into a folder, and returns that."""
    folder.mkdir(parents=True, exist_ok=True)
    _tell_of(CONFIG_NAME, folder)
    (folder / JSON_NAME).write_text(json_text(as_json(schedule)))
    if schedule.corrections:
        save_file({name: t.contiguous() for name, t in schedule.corrections.items()}, folder / TENSORS_NAME)
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


def save_config(
    method: str, options: dict[str, Any], folder: Path, models: Mapping[str, tuple[str, str]] | None = None
) -> Path:
    """Writes a config into a folder, and returns that.

    Args:
        method: its name.
        options: of it.
        folder: is made if need be.
        models: class and configuration hash of the denoisers that its values were measured on, by name; None: of none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _tell_of(JSON_NAME, folder)
    data: dict[str, Any] = {"format": FORMAT, "method": method, "options": options}
    if models is not None:
        data["models"] = {site: {"class": name, "config": config} for site, (name, config) in models.items()}
    (folder / CONFIG_NAME).write_text(json.dumps(data, indent=1) + "\n")
    return folder


def load_config(name: str | Path) -> tuple[str, dict[str, Any]]:
    """The method and the options of a saved config."""
    try:
        path = find(name, CONFIG_NAME)
        fields = _Fields(_json(path), path)
        return fields("method", str), fields("options", dict)
    except (FileNotFoundError, ScheduleError) as error:
        raise ConfigError(f"{error}") from error


def config_models(name: str | Path) -> dict[str, tuple[str, str]]:
    """The denoisers that a saved config's values were measured on, as for `save_config`; none where it does not say."""
    try:
        path = find(name, CONFIG_NAME)
        data = _json(path)
        models = _Fields(data, path)("models", dict) if "models" in data else {}
        each = {site: _Fields(model, path) for site, model in models.items()}
        return {site: (fields("class", str), fields("config", str)) for site, fields in each.items()}
    except (FileNotFoundError, ScheduleError) as error:
        raise ConfigError(f"{error}") from error


def is_yaml(name: str | Path) -> bool:
    """Whether it names a file of a method and its options, and not a folder."""
    return Path(name).suffix in (".yaml", ".yml")


def load_yaml(path: Path) -> tuple[str | None, dict[str, Any]]:
    """The method that a YAML file names, if it names one, and the options beside it.

    Raises:
        ConfigError: there is no such file, or it holds something else.
    """
    import yaml

    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error}): write `method: easycache` and options into it."
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: no YAML ({str(error).splitlines()[0]}).") from error
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(
            f"{path}: must hold names and values, such as `method: easycache` and `threshold: 0.1`."
        )
    method = data.pop("method", None)
    if method is not None and not isinstance(method, str):
        raise ConfigError(f"{path}: method must be a name, not {method!r}.")
    return method, {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}


def saved_in(name: str | Path) -> str:
    """Which of our files a folder or a hub repository holds: `CONFIG_NAME` or `JSON_NAME`.

    Raises:
        ScheduleError: neither, or both.
    """
    found, missing = list[str](), None
    for file in (CONFIG_NAME, JSON_NAME):
        try:
            find(name, file)
            found.append(file)
        except FileNotFoundError as error:
            missing = error
    if not found:
        raise ScheduleError(
            f"{name}: neither a folder nor a hub repository with {CONFIG_NAME} or {JSON_NAME}: pass one that "
            "save_pretrained has written."
        ) from missing
    if len(found) > 1:
        raise ScheduleError(
            f"{name}: holds both {CONFIG_NAME} and {JSON_NAME}: load the one that you mean, with "
            "CacheConfig.from_pretrained or Schedule.from_pretrained."
        )
    return found[0]


def find(name: str | Path, file: str) -> Path:
    """The path of a file in a folder, or else, for a text, in a hub repository.

    Raises:
        FileNotFoundError: it is in neither of them.
    """
    if Path(name).is_dir():
        if not (Path(name) / file).exists():
            raise FileNotFoundError(f"{Path(name) / file}: there is no such file")
        return Path(name) / file
    missing = f"{name}: neither a folder nor a hub repository with {file}"
    if isinstance(name, Path):
        raise FileNotFoundError(missing)
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    try:
        return Path(hf_hub_download(str(name), file))
    except (HfHubHTTPError, HFValidationError, EntryNotFoundError) as error:
        raise FileNotFoundError(missing) from error


def upload(save_to: Callable[[Path], object], repo_id: str, **options: Any) -> str:
    """Uploads what `save_to(folder)` writes to a hub repository, which is made if it does not exist; returns its address."""
    from tempfile import TemporaryDirectory

    from huggingface_hub import HfApi

    api = HfApi(token=options.pop("token", None))
    address = api.create_repo(repo_id, exist_ok=True, private=options.pop("private", None))
    with TemporaryDirectory() as folder:
        save_to(Path(folder))
        api.upload_folder(repo_id=repo_id, folder_path=folder, **options)
    return str(address)


def _tell_of(other: str, folder: Path) -> None:
    """Warns of a file of the other kind, which makes it unclear what the folder stands for."""
    if (folder / other).exists():
        logger.warning(
            "%s holds %s too, so that accelerate() will not know which one is meant: delete one, or save into another folder.",
            folder,
            other,
        )


def _read(path: Path, tensors_path: Callable[[], Path], make: Callable[..., T]) -> T:
    return _made(_json(path), path, lambda shapes: _tensors(tensors_path(), shapes), make)


def _made(
    data: Any,
    path: Path,
    corrections: Callable[[dict[str, list[int]]], dict[str, Tensor]],
    make: Callable[..., T],
) -> T:
    fields = _Fields(data, path)
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


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ScheduleError(f"{path}: not JSON, or cut short ({error}).") from error


class _Fields:
    """Reads fields by their dotted names. The error names a field that is missing or of the wrong type."""

    def __init__(self, data: Any, path: Path) -> None:
        self.data, self.path = data, path

    def __call__(self, name: str, kind: type, *others: None) -> Any:
        value = self.data
        for part in name.split("."):
            if not isinstance(value, dict) or part not in value:
                raise ScheduleError(f"{self.path}: {name}: missing.")
            value = value[part]
        if not isinstance(value, kind) and not (others and value is None):
            raise ScheduleError(f"{self.path}: {name}: must be {kind.__name__}, not {type(value).__name__}.")
        return value


def _model(site: str, data: Any, path: Path) -> tuple[str, str, tuple[tuple[int, ...], ...]]:
    fields = _Fields(data, path)
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
