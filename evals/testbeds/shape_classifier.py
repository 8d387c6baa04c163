"""A small classifier of procedural shapes and colours, for class accuracy and for features of KID and FID.

It is trained on the pictures of `diffcache.evals.testbeds.procedural` only. A distance between its features tells how two
sets of such pictures differ; it is not comparable with a distance between Inception features.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from diffcache.evals.testbeds import procedural

FOLDER = Path(__file__).resolve().parent / "classifier"
_FILE = "shape_colour_classifier.safetensors"
_SIDE = 64
_WIDTHS = (24, 48, 96, 128)


class ShapeColourClassifier(nn.Module):
    """Maps pictures [n, 3, h, w] to features [n, 128]; uint8 in 0..255 or float in 0..1, resized to 64 x 64."""

    num_features = 128

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in zip((3, *_WIDTHS[:-1]), _WIDTHS, strict=True):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(8, after), nn.SiLU()]
        self.layers = nn.Sequential(*layers)
        self.features = nn.Linear(2 * _WIDTHS[-1], self.num_features)
        self.head = nn.Linear(self.num_features, procedural.NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Features before the last layer, [n, 128] in float32."""
        pixels = images.float() / 255 if images.dtype == torch.uint8 else images.float()
        if pixels.shape[-2:] != (_SIDE, _SIDE):
            size = (_SIDE, _SIDE)
            pixels = functional.interpolate(
                pixels, size, mode="bilinear", align_corners=False, antialias=True
            )
        maps: Tensor = self.layers(pixels * 2 - 1)
        pooled = torch.cat([maps.mean((2, 3)), maps.amax((2, 3))], 1)
        return functional.silu(self.features(pooled))

    def logits(self, images: Tensor) -> Tensor:
        """Scores of the classes (shape index * number of colours + colour index), [n, classes]."""
        scores: Tensor = self.head(self(images))
        return scores

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """The most likely class of each picture [n, 3, h, w], or of each clip [n, t, 3, h, w] from the mean over its frames."""
        if images.ndim == 4:
            return self.logits(images).argmax(1)
        n, frames = images.shape[:2]
        return self.logits(images.flatten(0, 1)).view(n, frames, -1).mean(1).argmax(1)

    def save(self, folder: Path) -> None:
        """Writes the weights in float16."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: value.half().contiguous() for name, value in self.state_dict().items()}, folder / _FILE
        )

    @classmethod
    def load(cls, folder: Path = FOLDER) -> ShapeColourClassifier:
        """The trained classifier in float32 evaluation mode."""
        model = cls()
        model.load_state_dict({name: value.float() for name, value in load_file(folder / _FILE).items()})
        return model.eval().requires_grad_(False)
