"""The figures of an evaluation: each process measures its own samples, then the main process sums all of them up."""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from diffcache.evals.errors import EvaluationError
from diffcache.evals.evaluation.sample_folder import BatchRecord, ProcessShare, SampleFolder
from diffcache.evals.metrics.clip_score import ClipScore
from diffcache.evals.metrics.distribution import distances
from diffcache.evals.metrics.extractors import Extractor, Features, reference_features
from diffcache.evals.metrics.fidelity import lpips, psnr, ssim
from diffcache.evals.metrics.flicker import temporal_flickering

FULL, CACHED = "full", "cached"

Values = dict[int, dict[str, Tensor]]
"""By sample: its scalar figures, and the features [frames, D] and logits of its full and its cached version."""


@dataclass(frozen=True)
class Metrics:
    """What is needed for the figures. It is loaded before anything is generated, so that missing weights are reported at once.

    Attributes:
        extractor: of features; None: no distances.
        folder: of real pictures; None compares with the full run's.
        reference: the features of these pictures.
        clip: None: no CLIP score.
    """

    extractor: Extractor | None
    folder: Path | None
    reference: Features | None
    clip: ClipScore | None

    @classmethod
    def load(
        cls, extractor: str | None, reference: Path | None, clip: tuple[str, str | None] | None
    ) -> "Metrics":
        """From what an `Evaluation` names.

        Raises:
            EvaluationError: weights, a package or pictures are missing.
        """
        if reference is not None and extractor is None:
            raise EvaluationError(
                "a folder of real pictures is compared by features: name an extractor as well."
            )
        chosen = None if extractor is None else Extractor(extractor)
        return cls(
            chosen,
            reference,
            None if reference is None or chosen is None else reference_features(chosen, reference),
            None if clip is None else ClipScore(*clip),
        )


def measured(
    folders: dict[str, SampleFolder], prompts: list[Any], metrics: Metrics, share: ProcessShare
) -> Values:
    """Fidelity, features, CLIP scores and flickering of a share's samples."""
    values: Values = {}
    for (indices, full), (_, cached) in zip(
        folders[FULL].samples(share), folders[CACHED].samples(share), strict=True
    ):
        for index, plain, made in zip(indices, full, cached, strict=True):
            values[index] = _of_sample(plain[None], made[None], str(prompts[index]), metrics)
    return values


def _of_sample(plain: Tensor, made: Tensor, prompt: str, metrics: Metrics) -> dict[str, Tensor]:
    found = {"psnr": psnr(made, plain)[0], "ssim": ssim(made, plain)[0]}
    distance = lpips(made, plain)
    if distance is not None:
        found["lpips"] = distance
    for name, sample in ((FULL, plain), (CACHED, made)):
        if metrics.extractor is not None:
            features = metrics.extractor(sample)
            found |= {f"features_{name}": features.features, f"logits_{name}": features.logits}
        if metrics.clip is not None:
            found[f"clip_{name}"] = metrics.clip(sample, [prompt])[0]
        if sample.ndim == 5 and sample.shape[1] > 1:  # one frame does not flicker
            found[f"flicker_{name}"] = temporal_flickering(sample)[0]
    return found


def gathered(values: Values) -> Values:
    """The samples of all processes, in their order."""
    parts = gather_object([values])
    return dict(sorted((index, found) for part in parts for index, found in part.items()))


def summary(folders: dict[str, SampleFolder], values: Values, metrics: Metrics) -> dict[str, Any]:
    """All figures.

    Raises:
        EvaluationError: some batches are not finished, or samples are too few for a distance.
    """
    records = {name: samples.records() for name, samples in folders.items()}
    per_sample = [
        {"index": i, **{k: round(float(v), 6) for k, v in found.items() if v.ndim == 0}}
        for i, found in values.items()
    ]
    names = [name for name in per_sample[0] if name != "index"]
    return {
        "fidelity_and_alignment": {
            name: {
                "median": median(one[name] for one in per_sample),
                "mean": fmean(one[name] for one in per_sample),
            }
            for name in names
        },
        "distances": _distances(values, metrics),
        "cost": {name: _cost(found) for name, found in records.items()},
        "timelines": records[CACHED][0].timelines,
        "per_sample": per_sample,
    }


def _distances(values: Values, metrics: Metrics) -> dict[str, Any]:
    """Distances of cached and full samples to the reference; without a reference, of the cached ones to the full ones."""

    def joined(name: str) -> Tensor:
        return torch.cat([found[name] for found in values.values()])

    if metrics.extractor is None:
        return {}
    full = joined(f"features_{FULL}")
    found: dict[str, Any] = {"extractor": metrics.extractor.label}
    if metrics.reference is None:
        found["reference"] = "the full run's samples"
        found[CACHED] = distances(joined(f"features_{CACHED}"), full, joined(f"logits_{CACHED}")).as_dict()
        return found
    found["reference"] = str(metrics.folder)
    for name in (FULL, CACHED):
        features, logits = joined(f"features_{name}"), joined(f"logits_{name}")
        found[name] = distances(features, metrics.reference.features, logits).as_dict()
    return found


def _cost(records: list[BatchRecord]) -> dict[str, float]:
    return {
        "compute": fmean(record.compute for record in records),
        "cache_bytes": max(record.cache_bytes for record in records),
        "loop_seconds_median": median(record.seconds for record in records),
    }
