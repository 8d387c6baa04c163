"""Prompts from local files, in the formats in which prompt sets are published."""

import csv
import json
from pathlib import Path
from typing import Any

from diffcache.evals.errors import EvaluationError

COLUMNS = ("prompt", "Prompt", "caption", "prompt_en")
"""Names of a prompt's column: in our own files and MJHQ-30K, in PartiPrompts, in COCO, in VBench."""
ENCODING = "utf-8-sig"
"""UTF-8, with or without the byte order mark that spreadsheets write."""


def read_prompts(path: Path) -> list[str]:
    """The prompts of a file, in its order.

    Args:
        path: `.txt` with one per line; `.csv`, or `.tsv` without quoting (PartiPrompts), with a column of prompts;
            `.json`: a list of strings or of objects (VBench), an object of objects (MJHQ-30K), or COCO's
            annotations, of which the first caption of each picture is used.

    Raises:
        EvaluationError: there is no such file, it has another format, or no prompts.
    """
    reader = {".txt": _lines, ".csv": _table, ".tsv": _table, ".json": _json}.get(path.suffix.lower())
    if reader is None:
        raise EvaluationError(
            f"{path}: prompts come from .txt, .csv, .tsv or .json files; convert it to one of them."
        )
    try:
        prompts = [prompt.strip() for prompt in reader(path)]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, csv.Error, KeyError, TypeError) as error:
        raise EvaluationError(
            f"cannot read prompts from {path} ({type(error).__name__}: {error}): give one per line in a .txt file."
        ) from error
    prompts = [prompt for prompt in prompts if prompt]
    if not prompts:
        raise EvaluationError(f"{path} has no prompts: give one per line.")
    return prompts


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding=ENCODING).splitlines()


def _table(path: Path) -> list[str]:
    tabs: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    with path.open(encoding=ENCODING, newline="") as file:
        rows = list(csv.DictReader(file, **(tabs if path.suffix.lower() == ".tsv" else {})))
    return [_prompt_of(row) for row in rows]


def _json(path: Path) -> list[str]:
    data = json.loads(path.read_text(encoding=ENCODING))
    if not isinstance(data, (dict, list)):
        raise TypeError("neither a list nor an object")
    if isinstance(data, dict) and "annotations" in data:
        first: dict[Any, str] = {}
        for entry in data["annotations"]:
            first.setdefault(entry["image_id"], _prompt_of(entry))
        return list(first.values())
    entries = data.values() if isinstance(data, dict) else data
    return [entry if isinstance(entry, str) else _prompt_of(entry) for entry in entries]


def _prompt_of(entry: dict[str, Any]) -> str:
    for column in COLUMNS:
        if column in entry:
            return "" if entry[column] is None else str(entry[column])  # the row is too short
    raise KeyError(f"none of {', '.join(COLUMNS)} among {', '.join(map(str, entry))}")
