"""The files in evals/results: `<experiment>/<testbed>.json`, each with the header of `provenance`.

A name may go on after the testbed's ("dit_hold"). What an older file did not record is null in its header.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diffcache.evals.testbeds import splits
from diffcache.schedulers.whole_files import written_whole

RESULTS = Path(__file__).resolve().parents[1] / "results"

Result = dict[str, Any]
"""What a file holds: "header", the figures, and where some rows are younger than the others "renewed"."""


def result_path(experiment: str, name: str, folder: Path = RESULTS) -> Path:
    """Where the result of an experiment on a testbed lies."""
    return folder / experiment / f"{name}.json"


def stored(experiment: str, folder: Path = RESULTS) -> dict[str, Result]:
    """All results of an experiment by name: the testbeds' in their usual order, then the others' by alphabet."""
    found = {path.stem: read_result(path) for path in sorted((folder / experiment).glob("*.json"))}
    testbeds = {name: found.pop(name) for name in splits.FITTING if name in found}
    return {**testbeds, **found}


def read_result(path: Path) -> Result:
    result: Result = json.loads(path.read_text())
    return result


def write_result(path: Path, header: dict[str, Any], figures: dict[str, Any]) -> Path:
    """Writes a result, and the folders above it where they are missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_json(path, {"header": header, **figures})


def renewals(before: Sequence[Result], header: dict[str, Any], names: Sequence[str]) -> list[Result]:
    """The notes "renewed" of a result some of whose rows have been measured again.

    Args:
        before: the notes so far; one whose rows are all replaced now is dropped.
        header: of the new measurement.
        names: of its rows.
    """
    kept = [note for note in before if not {*note["names"]} <= {*names}]
    return [*kept, {"names": [*names], **header}]


def write_json(path: Path, data: Any) -> Path:
    """Writes a file as `write_text` does."""
    return write_text(path, json.dumps(data, indent=1) + "\n")


def write_text(path: Path, text: str) -> Path:
    """Writes the whole file or leaves what was there: a reader never sees half of it."""
    with written_whole(path) as part:
        part.write_text(text)
    return path
