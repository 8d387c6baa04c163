"""Distances of the contenders' pictures to real ones: FID, KID, precision and recall, of many pictures of each.

All contenders draw the same classes from the same seeds, in calls of the same size. Denoisers run in bfloat16, the full run's too:
on a CPU that is more than twice as fast. Features are kept after each call, and a measurement that was interrupted goes on there.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from diffcache.evals.harness.results import Result, read_result, renewals, write_result
from diffcache.evals.harness.unseen import judged_on
from diffcache.evals.metrics.distribution import distances
from diffcache.evals.metrics.extractors import FASHION, Extractor
from diffcache.evals.race.contender import RaceSetup
from diffcache.evals.race.entries import Entry, entries
from diffcache.evals.race.result import RaceResult
from diffcache.evals.race.track import Track
from diffcache.evals.testbeds import fashion_mnist, zoo

EXPERIMENT, TESTBED = "race_fid", "fashion"
SAMPLES = 10_000
"""As many as there are real pictures."""
BATCH = 50
"""Pictures in a call; a cache that watches a change decides for all of them at once."""
FIRST_SEED = 100_000
"""Far from all seeds of `splits.PARTS`."""
DTYPE = torch.bfloat16
PLAN = {"samples_in_a_call": BATCH, "first_seed": FIRST_SEED, "denoiser": str(DTYPE).removeprefix("torch.")}
FIGURES = ("fid", "kid", "precision", "recall")


class Distributions:
    """The measurement on the testbed of Fashion-MNIST.

    Args:
        race: the race on it, whose settings are taken.
        path: of the result. Rows of other entries that lie there stay.
        header: of a new result, or of the note on what is new in it.
        kept: folder of features; they depend on the code, so give each commit its own.
        samples: pictures of each entry.
    """

    def __init__(
        self, race: RaceResult, path: Path, header: dict[str, Any], kept: Path, samples: int = SAMPLES
    ) -> None:
        self.race, self.path, self.header, self.kept, self.samples = race, path, header, kept, samples
        self._track = Track(RaceSetup(race.testbed, race.steps), dtype=DTYPE)
        self._extractor = Extractor(FASHION)
        self._reference = fashion_mnist.reference_features()

    def run(self, titles: Sequence[str]) -> None:
        """Measures the entries of these titles, and saves a row after each."""
        with judged_on(self.race.testbed):
            for entry in [entry for title in titles for entry in entries(self.race, title)]:
                self._add(self._row(entry))

    def _row(self, entry: Entry) -> dict[str, Any]:
        features, compute = self._features(entry)
        found = distances(features, self._reference).as_dict()
        return {
            "title": entry.title,
            "budget": entry.budget,
            "contender": entry.title if entry.contender is None else entry.contender.full_name,
            "options": dict(entry.options),
            "compute": round(compute, 4),
            "pictures": len(features),
            **{name: found[name] for name in FIGURES},
        }

    def _features(self, entry: Entry) -> tuple[Tensor, float]:
        """Features [samples, D] of an entry's pictures, and the mean compute of a picture."""
        path = self.kept / f"{_key(entry)}.safetensors"
        done = load_file(path) if path.exists() else {}
        first = len(done["features"]) if done else 0
        for start in tqdm(range(first, self.samples, BATCH), desc=_shown(entry), mininterval=30):
            numbers = range(start, min(start + BATCH, self.samples))
            drawn = self._drawn(entry, numbers)
            done = {name: torch.cat([done[name], new]) if done else new for name, new in drawn.items()}
            self.kept.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            save_file(done, partial)
            partial.replace(path)
        return done["features"][: self.samples], float(done["compute"][: self.samples].mean())

    def _drawn(self, entry: Entry, numbers: range) -> dict[str, Tensor]:
        """Features and compute of some samples by their numbers. Classes come in turn, and each sample has its own seed."""
        labels = [i % zoo.CLASSES[TESTBED] for i in numbers]
        seeds = [FIRST_SEED + i for i in numbers]
        pictures, compute = self._track.pictures(entry.contender, entry.options, labels, seeds)
        features = self._extractor(pictures).features
        return {"features": features, "compute": torch.full([len(features)], compute, dtype=torch.float64)}

    def _add(self, row: dict[str, Any]) -> None:
        """Saves a row, in the place of an older one of the same title and budget."""
        result = read_result(self.path) if self.path.exists() else self._empty()
        place = row["title"], row["budget"]
        rows = [old for old in result["rows"] if (old["title"], old["budget"]) != place]
        figures = {**result, "rows": [*rows, row]}
        header = figures.pop("header")
        if self.header["commit"] != header["commit"]:
            figures["renewed"] = renewals(result["renewed"], self.header, [row["title"]])
        write_result(self.path, header, figures)

    def _empty(self) -> Result:
        about = {"testbed": self.race.testbed, "steps": self.race.steps, **PLAN}
        return {"header": self.header, **about, "renewed": [], "rows": []}


def _key(entry: Entry) -> str:
    name = None if entry.contender is None else entry.contender.full_name
    return hashlib.sha256(json.dumps([name, entry.options], sort_keys=True).encode()).hexdigest()[:16]


def _shown(entry: Entry) -> str:
    return entry.title if entry.budget is None else f"{entry.title} at {entry.budget:g}x"
