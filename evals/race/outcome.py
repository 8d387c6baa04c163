"""What a race on one testbed gave: every lap, who did not attach, and its file."""

import json
from collections.abc import Sequence
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
        provenance: command, date, device, versions; under "renewed" those of later races, with the contenders raced.
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

    def renewed(self, later: "Outcome", raced: Sequence[str]) -> "Outcome":
        """With the laps of a later race of these contenders ("package: name"); all other laps stay.

        Raises:
            ValueError: the later race had other samples or steps.
        """
        if (later.samples, later.steps) != (self.samples, self.steps):
            raise ValueError(
                f"{self.testbed} was raced with {self.samples} samples and {self.steps} steps: race these alike."
            )
        kept = [lap for lap in self.laps if f"{lap.package}: {lap.name}" not in raced]
        refused = {name: why for name, why in self.refused.items() if name not in raced}
        earlier = [
            race for race in self.provenance.get("renewed", []) if not {*race["contenders"]} <= {*raced}
        ]
        renewed = [*earlier, {"contenders": [*raced], **later.provenance}]
        return replace(
            self,
            laps=later.laps + kept,
            refused=later.refused | refused,
            provenance={**self.provenance, "renewed": renewed},
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
