"""Configs as files: JSON that a method saves, and YAML that people write."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffcache.schedulers.artifact import CONFIG_NAME, FORMAT, JSON_NAME, Fields, find, read_json, tell_of
from diffcache.schedulers.errors import ConfigError, ScheduleError


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
    tell_of(JSON_NAME, folder)
    data: dict[str, Any] = {"format": FORMAT, "method": method, "options": options}
    if models is not None:
        data["models"] = {site: {"class": name, "config": config} for site, (name, config) in models.items()}
    (folder / CONFIG_NAME).write_text(json.dumps(data, indent=1) + "\n")
    return folder


def load_config(name: str | Path) -> tuple[str, dict[str, Any]]:
    """The method and the options of a saved config."""
    try:
        path = find(name, CONFIG_NAME)
        fields = Fields(read_json(path), path)
        return fields("method", str), fields("options", dict)
    except (FileNotFoundError, ScheduleError) as error:
        raise ConfigError(f"{error}") from error


def config_models(name: str | Path) -> dict[str, tuple[str, str]]:
    """The denoisers that a saved config's values were measured on, as for `save_config`; none where it does not say."""
    try:
        path = find(name, CONFIG_NAME)
        data = read_json(path)
        models = Fields(data, path)("models", dict) if "models" in data else {}
        each = {site: Fields(model, path) for site, model in models.items()}
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
