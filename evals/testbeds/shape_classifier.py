"""The classifier of procedural shapes and colours.

It is trained on the pictures of `diffcache.evals.testbeds.procedural` only. A distance between its features tells how two
sets of such pictures differ; it is not comparable with a distance between Inception features.
"""

from __future__ import annotations

from pathlib import Path

from diffcache.evals.testbeds import procedural
from diffcache.evals.testbeds.picture_classifier import PictureClassifier


class ShapeColourClassifier(PictureClassifier):
    """Classes are shape index * number of colours + colour index; features [n, 128]."""

    num_features = 128
    num_classes = procedural.NUM_CLASSES
    side = 64
    file = Path(__file__).resolve().parent / "classifier" / "shape_colour_classifier.safetensors"
