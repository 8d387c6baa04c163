"""What saved schedules and configs share: names of files, where they are found, and JSON that people can read and compare. No pickle."""

import json
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diffcache.schedulers.errors import ScheduleError

logger = logging.getLogger("diffcache")

FORMAT = 1
"""Version of the files. Files of another version are refused."""

JSON_NAME = "cache_schedule.json"
TENSORS_NAME = "cache_schedule.safetensors"
CONFIG_NAME = "cache_config.json"


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


def tell_of(other: str, folder: Path) -> None:
    """Warns of a file of the other kind, which makes it unclear what the folder stands for."""
    if (folder / other).exists():
        logger.warning(
            "%s holds %s too, so that accelerate() will not know which one is meant: delete one, or save into another folder.",
            folder,
            other,
        )


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        ScheduleError: it is no JSON.
    """
    try:
        return json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ScheduleError(f"{path}: not JSON, or cut short ({error}).") from error


class Fields:
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
