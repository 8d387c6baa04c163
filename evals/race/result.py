"""The race on one testbed as a result: every measurement, and who did not attach."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from diffcache.evals.harness.results import Result, read_result, renewals, write_result
from diffcache.evals.race.contender import OURS, full_name
from diffcache.evals.race.raced_testbed import Measurement

EXPERIMENT = "race"


@dataclass(frozen=True, kw_only=True)
class RaceResult:
    """The race on one testbed.

    Attributes:
        header: of the file, see `provenance.header`.
        testbed, samples, steps: what was run.
        full: the full run.
        fewer_steps: the plain pipeline with fewer steps.
        rows: every contender at every setting.
        refused: full names of contenders that do not attach, or reuse nothing, and why, in a sentence.
        renewed: notes on later races of some contenders, see `results.renewals`.
    """

    header: dict[str, Any]
    testbed: str
    samples: int
    steps: int
    full: Measurement
    fewer_steps: list[Measurement]
    rows: list[Measurement]
    refused: dict[str, str]
    renewed: list[Result] = field(default_factory=list)

    @property
    def peers(self) -> list[str]:
        """The packages of the peers that attached."""
        return sorted({row.package for row in self.rows} - {OURS}, key=str.lower)

    def with_rows_of(self, later: "RaceResult", names: Sequence[str]) -> "RaceResult":
        """With the rows of a later race in place of those of these contenders.

        Args:
            later: the race of these contenders alone.
            names: their full names.

        Raises:
            ValueError: the later race had other samples or steps.
        """
        if (later.samples, later.steps) != (self.samples, self.steps):
            raise ValueError(
                f"{self.testbed} was raced with {self.samples} samples and {self.steps} steps: race these alike."
            )
        kept = [row for row in self.rows if full_name(row.package, row.name) not in names]
        refused = {name: why for name, why in self.refused.items() if name not in names}
        return replace(
            self,
            rows=later.rows + kept,
            refused=later.refused | refused,
            renewed=renewals(self.renewed, later.header, names),
        )

    def save(self, path: Path) -> Path:
        figures = asdict(self)
        return write_result(path, figures.pop("header"), figures)

    @classmethod
    def load(cls, path: Path) -> "RaceResult":
        data = read_result(path)
        data["full"] = Measurement(**data["full"])
        for rows in ("fewer_steps", "rows"):
            data[rows] = [Measurement(**row) for row in data[rows]]
        return cls(**data)
