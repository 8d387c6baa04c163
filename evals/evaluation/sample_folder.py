"""A folder of samples, generated in batches: it can be split over processes, and interrupted and continued."""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from diffcache.evals.errors import EvaluationError
from diffcache.evals.harness.rendering import Rendered
from diffcache.evals.harness.results import write_json
from diffcache.evals.metrics.media import find_sample, load_sample, save_sample
from diffcache.reports.run_report import RunReport

MANIFEST = "manifest.json"

LONG = 60
"""The most characters of a value in a refusal."""


@dataclass(frozen=True)
class ProcessShare:
    """The part of the work that is this process's: batches `rank`, `rank + world`, ..."""

    rank: int = 0
    world: int = 1


@dataclass(frozen=True)
class BatchRecord:
    """What one call of the pipeline cost.

    Attributes:
        samples: the numbers of its samples.
        seconds: wall time of the denoising loop.
        compute: share of the full run's work.
        cache_bytes: the most that was held at once.
        timelines: by guidance pass, a character per tick: "#" computed, "-" reused, "." not called.
    """

    samples: list[int]
    seconds: float
    compute: float
    cache_bytes: int
    timelines: dict[str, str]


class SampleFolder:
    """One folder of samples: `samples/000000.png`, ..., and a record of each finished batch, `batches/000000.json`.

    A record is written after its samples. A batch is finished if its record and all its samples exist. Batches do not
    depend on the number of processes, because a cache may decide for a batch as a whole.

    Args:
        folder: created if it is missing.
        count: number of samples.
        batch_size: samples in a call.
    """

    def __init__(self, folder: Path, count: int, batch_size: int) -> None:
        self.folder, self.count = folder, count
        starts = range(0, count, batch_size)
        self.batches = [list(range(start, min(start + batch_size, count))) for start in starts]
        for part in ("samples", "batches"):
            (folder / part).mkdir(parents=True, exist_ok=True)

    def generate(self, render: Callable[[list[int]], Rendered], share: ProcessShare) -> int:
        """Renders the unfinished batches of a share; returns their number.

        Args:
            render: from sample numbers to pictures [N, ...]; their seeds depend on these numbers alone.
            share: of this process.
        """
        todo = [number for number in self._numbers(share) if not self._finished(number)]
        for number in todo:
            rendered = render(self.batches[number])
            for index, sample in zip(self.batches[number], rendered.pictures, strict=True):
                save_sample(sample, self._sample(index))
            write_json(self._record(number), asdict(_record(self.batches[number], rendered)))
        return len(todo)

    def samples(self, share: ProcessShare) -> Iterator[tuple[list[int], list[Tensor]]]:
        """The batches of a share: sample numbers, and samples [C, H, W] or [F, C, H, W]."""
        for number in self._numbers(share):
            yield self.batches[number], [self.sample(index) for index in self.batches[number]]

    def sample(self, index: int) -> Tensor:
        """One sample, [C, H, W] or [F, C, H, W] in 0..1.

        Raises:
            EvaluationError: it is missing or cannot be read.
        """
        path = find_sample(self._sample(index))
        if path is None:
            raise EvaluationError(f"sample {self._sample(index)} is missing: run again.")
        return load_sample(path)

    def records(self) -> list[BatchRecord]:
        """What every batch cost.

        Raises:
            EvaluationError: some batches are not finished.
        """
        missing = [number for number in range(len(self.batches)) if not self._finished(number)]
        if missing:
            raise EvaluationError(
                f"{self.folder}: {len(missing)} of {len(self.batches)} batches are not done; run again to finish."
            )
        return [BatchRecord(**json.loads(self._record(i).read_text())) for i in range(len(self.batches))]

    def _finished(self, number: int) -> bool:
        samples = (find_sample(self._sample(index)) for index in self.batches[number])
        return self._record(number).exists() and all(samples)

    def _numbers(self, share: ProcessShare) -> range:
        return range(share.rank, len(self.batches), share.world)

    def _sample(self, index: int) -> Path:
        return self.folder / "samples" / f"{index:06d}"

    def _record(self, number: int) -> Path:
        return self.folder / "batches" / f"{number:06d}.json"


def has_batches(folder: Path) -> bool:
    """Whether a `SampleFolder` there has finished a batch."""
    return any((folder / "batches").glob("*.json"))


def check_manifest(folder: Path, manifest: dict[str, Any], free: Collection[str] = ()) -> None:
    """Writes down what the samples of a folder are made with; if that is there already, checks that it is the same.

    Args:
        folder: of the evaluation.
        manifest: what they are made with.
        free: names in it that no finished sample depends on; they may have changed.

    Raises:
        EvaluationError: the folder holds samples that were made in another way, or a manifest of something else, or cannot be
            written to.
    """
    path = folder / MANIFEST
    if path.exists():
        kept, now = _kept(path), json.loads(json.dumps(manifest))  # tuples become lists
        for name in now | kept:
            if name not in free and kept.get(name) != now.get(name):
                raise EvaluationError(
                    f"{folder} holds samples with {_differing(name, kept.get(name), now.get(name))}: choose another folder, or "
                    "delete it."
                )
        if kept == now:
            return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, manifest)
    except OSError as error:
        raise EvaluationError(f"cannot write to {folder} ({error}): choose another folder.") from error


def _differing(name: str, kept: Any, now: Any) -> str:
    """What a manifest says, and what it should; of options those alone that differ."""
    if not isinstance(kept, dict) or not isinstance(now, dict):
        return f"{name} = {_short(kept)}, not {_short(now)}"
    changed = [each for each in now | kept if kept.get(each) != now.get(each)]
    return " and ".join(_differing(each, kept.get(each), now.get(each)) for each in changed)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= LONG else f"{text[: LONG - 3]}..."


def _kept(path: Path) -> dict[str, Any]:
    """The manifest that a folder has.

    Raises:
        EvaluationError: it is somebody else's file, or damaged.
    """
    try:
        kept = json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError):
        kept = None
    if not isinstance(kept, dict):
        raise EvaluationError(f"{path} is not of an evaluation, or damaged: choose another folder.")
    return kept


def _record(samples: Sequence[int], rendered: Rendered) -> BatchRecord:
    report = rendered.report
    if report is None:
        return BatchRecord(list(samples), rendered.seconds, 1.0, 0, {})
    return BatchRecord(
        list(samples), rendered.seconds, report.compute_fraction, report.cache_bytes, _timelines(report)
    )


def _timelines(report: RunReport) -> dict[str, str]:
    computed, called = report.decisions.any(-1), report.called.any(-1)
    return {
        branch: "".join(
            "#" if computed[tick, i] else "-" if called[tick, i] else "." for tick in range(len(called))
        )
        for i, branch in enumerate(report.branches)
    }
