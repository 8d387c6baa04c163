"""The ten classes of Fashion-MNIST, by label, and a classifier of them.

A distance between the classifier's features tells how two sets of such pictures differ; it is not comparable with a distance
between Inception features.
"""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from diffcache.evals.testbeds.picture_classifier import PictureClassifier

NAMES = (
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
TEST_FEATURES = "test_features.safetensors"
"""Beside the classifier's weights: its features of the 10,000 test pictures, in float16."""


class FashionClassifier(PictureClassifier):
    """Classes are Fashion-MNIST's labels; features [n, 64]."""

    num_features = 64
    num_classes = len(NAMES)
    side = 32
    file = Path(__file__).resolve().parent / "fashion_classifier" / "fashion_classifier.safetensors"


def reference_features() -> Tensor:
    """The classifier's features of Fashion-MNIST's test pictures, [10000, 64] in float32: the reference set of FID and KID."""
    return load_file(FashionClassifier.file.with_name(TEST_FEATURES))["features"].float()
