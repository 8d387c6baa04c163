"""What `tune` found, as a folder that `accelerate(pipe, folder)` loads."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffcache.config import CacheConfig
from diffcache.schedulers.artifact import CONFIG_NAME, JSON_NAME, TENSORS_NAME
from diffcache.schedulers.schedule import Schedule

TUNE = "tune.json"
"""The file that says how it was found, and what it measured."""


@dataclass(frozen=True)
class Found:
    """A result.

    Attributes:
        method: a schedule, or the config of a method that decides in the run.
        producer: how it was found.
        measured: what it gave, on which part of the calls.
    """

    method: Schedule | CacheConfig
    producer: dict[str, Any]
    measured: dict[str, Any]


def write(found: Found, folder: Path) -> Path:
    """Writes a result into a folder, in place of an earlier one."""
    folder.mkdir(parents=True, exist_ok=True)
    for earlier in (CONFIG_NAME, JSON_NAME, TENSORS_NAME):
        (folder / earlier).unlink(missing_ok=True)
    found.method.save_pretrained(folder)
    figures = {"producer": found.producer, "measured": found.measured}
    (folder / TUNE).write_text(json.dumps(figures, indent=1) + "\n")
    return folder
