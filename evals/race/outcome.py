"""What a race on one testbed gave: every lap, who did not attach, and its file."""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from diffcache.evals.race.contender import OURS
from diffcache.evals.race.course import Lap


@dataclass(frozen=True)
class Outcome:
    """All of a race on one testbed.

    Attributes:
        testbed, samples, steps: what was run.
        full: the full run.
        fewer: the plain pipeline with fewer steps.
        laps: every contender at every setting.
        refused: "package: name" of those that do not attach, or reuse nothing, to the sentence that says why.
        provenance: command, date, device, versions; under "ours" those of our laps where they are newer.
    """

    testbed: str
    samples: int
    steps: int
    full: Lap
    fewer: list[Lap]
    laps: list[Lap]
    refused: dict[str, str]
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def peers(self) -> list[str]:
        """The packages of the peers that attached."""
        return sorted({lap.package for lap in self.laps} - {OURS}, key=str.lower)

    def renewed(self, ours: "Outcome") -> "Outcome":
        """With our laps of a later race; the peers' stay.

        Raises:
            ValueError: the later race had other samples or steps.
        """
        if (ours.samples, ours.steps) != (self.samples, self.steps):
            raise ValueError(
                f"{self.testbed} was raced with {self.samples} samples and {self.steps} steps: race ours alike."
            )
        theirs = [lap for lap in self.laps if lap.package != OURS]
        refused = {name: why for name, why in self.refused.items() if not name.startswith(f"{OURS}: ")}
        return replace(
            self,
            laps=ours.laps + theirs,
            refused=ours.refused | refused,
            provenance={**self.provenance, "ours": ours.provenance},
        )

    def save(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path: Path) -> "Outcome":
        data = json.loads(path.read_text())
        data["full"] = Lap(**data["full"])
        for rows in ("fewer", "laps"):
            data[rows] = [Lap(**lap) for lap in data[rows]]
        return cls(**data)
