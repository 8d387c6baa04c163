"""What `tune` found, as a folder that `accelerate(pipe, folder)` loads."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffcache.config import CacheConfig
from diffcache.profiling.recording.pictures import psnr
from diffcache.profiling.recording.shares import SLACK
from diffcache.schedulers.artifact import CONFIG_NAME, JSON_NAME, TENSORS_NAME, Fields, json_text, read_json
from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.whole_files import written_whole

logger = logging.getLogger("diffcache")

TUNE = "tune.json"
"""The file that says how it was found, and what it measured."""

AIMS = ("speedup", "quality", "at_least", "engine")
"""What a producer says that it was asked for."""


@dataclass(frozen=True)
class Found:
    """A result.

    Attributes:
        method: a schedule, or the config of a method that decides in the run.
        producer: how it was found.
        measured: what it gave, on which part of the calls.
        models: class and configuration hash of the denoisers that it was measured on, by name.
    """

    method: Schedule | CacheConfig
    producer: dict[str, Any]
    measured: dict[str, Any]
    models: dict[str, tuple[str, str]]


def save_measured(
    method: Schedule | CacheConfig, models: Mapping[str, tuple[str, str]], folder: Path
) -> None:
    """Saves a method whose values were measured on these denoisers (see `Found`). A schedule names them itself."""
    if isinstance(method, Schedule):
        method.save_pretrained(folder)
    else:
        method.save_pretrained(folder, models)


def write(found: Found, folder: Path) -> Path:
    """Writes a result into a folder, in place of an earlier one. A warning says which, where it was made for another aim."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / TUNE).is_file():
        _warn_of_another_aim(folder, found)
    of_the_other_kind = (CONFIG_NAME,) if isinstance(found.method, Schedule) else (JSON_NAME, TENSORS_NAME)
    for earlier in of_the_other_kind:
        (folder / earlier).unlink(missing_ok=True)
    save_measured(found.method, found.models, folder)
    figures = {"producer": found.producer, "measured": found.measured}
    with written_whole(folder / TUNE) as part:
        part.write_text(json_text(figures))
    return folder


def figures_in(folder: Path) -> Fields:
    """What `TUNE` in a folder says.

    Raises:
        ScheduleError: it is no JSON. So do the fields that are missing.
    """
    return Fields(read_json(folder / TUNE), folder / TUNE)


def _warn_of_another_aim(folder: Path, found: Found) -> None:
    try:
        before, now = _aim(figures_in(folder)("producer", dict)), _aim(found.producer)
    except ScheduleError as error:
        logger.warning("%s It is replaced.", error)
        return
    if before != now:
        logger.warning(
            "%s held what was tuned for %s; it holds what was tuned for %s now.", folder, before, now
        )


def _aim(producer: Mapping[str, Any]) -> str:
    """What a result was made for."""
    return ", ".join(f"{name}={producer[name]}" for name in AIMS if producer.get(name) is not None)


def unit_of(producer: Mapping[str, Any]) -> str:
    """What follows a number of the objective: " dB" of PSNR; nothing of others, or where it was not written down."""
    return " dB" if producer.get("objective") == psnr.__name__ else ""


def missed(producer: Mapping[str, Any], measured: Mapping[str, Any]) -> str | None:
    """What is to be said of a method that misses the speed-up that it was made for; None where it does not.

    Args:
        producer, measured: of `Found`.
    """
    speedup, compute = producer.get("speedup"), measured["compute_fraction"]
    if speedup is None or compute <= 1 / speedup + SLACK:
        return None
    return (
        f"speedup={speedup:g} was missed: {compute:.1%} of the work is computed on a prompt to choose on: ask for more speed-up, or "
        "choose another engine"
    )
