"""The race on one testbed as a file: every measurement as it came, and who did not take part."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffcache.evals.harness.results import Result, read_result, write_text
from diffcache.evals.race.row import Row

EXPERIMENT = "race"


@dataclass
class RaceResult:
    """The race on one testbed.

    Attributes:
        header: of the file, see `provenance.header`.
        testbed, steps: what was run.
        rows: every measurement.
        refused: settings that do not attach to this testbed and why, in a sentence, by the contender's full name.
        renewed: headers of later sessions that added rows, each with the "names" of the contenders in it.
    """

    header: dict[str, Any]
    testbed: str
    steps: int
    rows: list[Row] = field(default_factory=list)
    refused: dict[str, dict[str, str]] = field(default_factory=dict)
    renewed: list[Result] = field(default_factory=list)

    def find(self, contender: str, options: Any, part: str) -> Row | None:
        """The measurement of a setting, where it is there already."""
        asked = contender, _key(options), part
        return next((row for row in self.rows if (row.contender, _key(row.options), row.part) == asked), None)

    def of(self, contender: str, part: str) -> list[Row]:
        """The rows of a contender on one part."""
        return [row for row in self.rows if row.contender == contender and row.part == part]

    def save(self, path: Path) -> Path:
        """Writes the whole file or leaves what was there; a line for each row."""
        path.parent.mkdir(parents=True, exist_ok=True)
        figures = {name: value for name, value in vars(self).items() if name != "rows"}
        rows = ",\n".join("  " + json.dumps(row.as_dict()) for row in self.rows)
        text = json.dumps(figures, indent=1)
        return write_text(path, f'{text[:-2]},\n "rows": [\n{rows}\n ]\n}}\n')

    @classmethod
    def load(cls, path: Path) -> "RaceResult":
        data = read_result(path)
        return cls(**{**data, "rows": [Row(**row) for row in data["rows"]]})


def _key(options: Any) -> str:
    return json.dumps(options, sort_keys=True)
