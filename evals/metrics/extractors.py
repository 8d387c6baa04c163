"""Feature extractors for distances between sets of pictures: Inception, or the testbeds' classifier, which needs no download."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchmetrics.image.fid import NoTrainInceptionV3

from diffcache.evals.errors import EvaluationError
from diffcache.evals.metrics.media import eight_bit, load_sample
from diffcache.evals.testbeds.fashion_mnist import FashionClassifier
from diffcache.evals.testbeds.picture_classifier import PictureClassifier
from diffcache.evals.testbeds.shape_classifier import ShapeColourClassifier
from diffcache.schedulers.whole_files import written_whole

CLASSIFIER, FASHION, INCEPTION = "classifier", "fashion_classifier", "inception"
CLASSIFIERS: dict[str, type[PictureClassifier]] = {
    CLASSIFIER: ShapeColourClassifier,
    FASHION: FashionClassifier,
}
_LABELS = {CLASSIFIER: "testbed classifier", FASHION: "Fashion-MNIST classifier"}
PICTURE_FILES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True)
class Features:
    """Of N pictures: `features`, fp32 [N, D], and `logits` [N, classes] for the Inception score."""

    features: Tensor
    logits: Tensor


class Extractor:
    """Extracts features of pictures.

    Args:
        name: "classifier" for the testbeds' own, which knows shapes and colours only; "fashion_classifier" for that of
            Fashion-MNIST; "inception" for Inception v3, whose weights are downloaded; or the path of these weights (weights-inception-2015-12-05-6726825d.pth of
            the torch-fidelity project).

    Raises:
        EvaluationError: the weights are missing, or torch-fidelity, which Inception needs.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.net: Any = CLASSIFIERS[name].load() if name in CLASSIFIERS else _inception(name)

    @property
    def label(self) -> str:
        """The name that figures must carry: distances of different extractors are not comparable."""
        return _LABELS.get(self.name, "Inception v3")

    @torch.no_grad()
    def __call__(self, pictures: Tensor) -> Features:
        """Features of pictures [N, 3, H, W] in 0..1, or of all frames of videos [N, F, 3, H, W]."""
        frames = eight_bit(pictures.flatten(0, -4))
        if isinstance(self.net, PictureClassifier):
            features = self.net(frames)
            return Features(features, self.net.head(features))
        features = self.net(frames)
        return Features(features, features @ self.net.fc.weight.T)  # torchmetrics' logits_unbiased


def reference_features(extractor: Extractor, folder: Path) -> Features:
    """Features of a folder of pictures of any size; they are computed once and kept in the user's cache folder.

    Raises:
        EvaluationError: the folder has no pictures, or a picture cannot be read.
    """
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURE_FILES)
    if not files:
        raise EvaluationError(
            f"{folder} has no pictures ({', '.join(PICTURE_FILES)}): name a folder that has."
        )
    kept = _cache_folder() / f"{_fingerprint(extractor, files)}.safetensors"
    if not kept.exists():
        parts = [extractor(load_sample(file)[None]) for file in files]
        kept.parent.mkdir(parents=True, exist_ok=True)
        tensors = {
            "features": torch.cat([part.features for part in parts]),
            "logits": torch.cat([part.logits for part in parts]),
        }
        with written_whole(kept) as part:
            save_file(tensors, part)
    return Features(**load_file(kept))


def _inception(weights: str) -> Any:
    path = None if weights == INCEPTION else Path(weights)
    if path is not None and not path.is_file():
        raise EvaluationError(
            f"no Inception weights at {path}: name the .pth file, or use 'classifier' on testbeds."
        )
    try:
        return NoTrainInceptionV3("inception-v3-compat", ["2048"], None if path is None else str(path))
    except ModuleNotFoundError as error:
        raise EvaluationError(
            "Inception features need torch-fidelity: pip install torch-fidelity."
        ) from error
    except OSError as error:
        raise EvaluationError(
            f"Inception's weights could not be downloaded ({error}): download them and give their path instead."
        ) from error
    except (RuntimeError, UnpicklingError) as error:
        raise EvaluationError(
            f"{path} does not hold the weights of torch-fidelity's Inception v3."
        ) from error


def _fingerprint(extractor: Extractor, files: list[Path]) -> str:
    """A hash of the extractor's weights, and of the pictures' names, sizes and times of change."""
    digest = hashlib.sha256()
    for tensor in extractor.net.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    for file in files:
        state = file.stat()
        digest.update(f"{file}|{state.st_size}|{state.st_mtime_ns}".encode())
    return digest.hexdigest()[:32]


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "diffcache" / "references"
