"""Files that a search keeps beside its checkpoint: what it searches, and a log with a line for each thing it did."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.whole_files import written_whole


def claim(path: Path, about: Mapping[str, Any], whose: str = "a search") -> None:
    """Writes what a search is about; if the file is there already, checks that it says the same.

    Args:
        path: of the file.
        about: what JSON can hold.
        whose: the folder is, for the refusal.

    Raises:
        ScheduleError: the folder belongs to another search.
    """
    if not path.exists():
        with written_whole(path) as part:
            part.write_text(json.dumps(about, indent=1) + "\n")
        return
    written = json.loads(path.read_text())
    about = json.loads(json.dumps(about))  # JSON turns tuples into lists
    changed = [name for name in about if about[name] != written.get(name)]
    if changed:
        raise ScheduleError(
            f"{path}: belongs to {whose} with another {', '.join(changed)}: choose another folder."
        )


def log_line(path: Path, line: Mapping[str, Any]) -> None:
    """Appends one line of JSON to a file."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
