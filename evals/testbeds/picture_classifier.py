"""A small convolutional classifier of pictures, for class accuracy and for features of KID and FID."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Self

from diffcache.evals.errors import EvaluationError
from diffcache.evals.testbeds.half_weights import save_weights, with_weights

_WIDTHS = (24, 48, 96, 128)


class PictureClassifier(nn.Module):
    """Maps pictures [n, 3, h, w] to features [n, num_features]; uint8 in 0..255 or float in 0..1, resized to side x side.

    A subclass says how many features and classes there are, how large pictures are, and where its weights are.
    """

    num_features: ClassVar[int]
    num_classes: ClassVar[int]
    side: ClassVar[int]
    file: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in zip((3, *_WIDTHS[:-1]), _WIDTHS, strict=True):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(8, after), nn.SiLU()]
        self.layers = nn.Sequential(*layers)
        self.features = nn.Linear(2 * _WIDTHS[-1], self.num_features)
        self.head = nn.Linear(self.num_features, self.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Features before the last layer, [n, num_features] in float32."""
        pixels = images.float() / 255 if images.dtype == torch.uint8 else images.float()
        size = (self.side, self.side)
        if pixels.shape[-2:] != size:
            pixels = functional.interpolate(
                pixels, size, mode="bilinear", align_corners=False, antialias=True
            )
        maps: Tensor = self.layers(pixels * 2 - 1)
        pooled = torch.cat([maps.mean((2, 3)), maps.amax((2, 3))], 1)
        return functional.silu(self.features(pooled))

    def logits(self, images: Tensor) -> Tensor:
        """Scores of the classes, [n, classes]."""
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
        save_weights(self, folder / self.file.name)

    @classmethod
    def load(cls) -> Self:
        """The trained classifier in float32 evaluation mode.

        Raises:
            EvaluationError: its weights are not here.
        """
        if not cls.file.exists():
            raise EvaluationError(
                f"the weights of {cls.__name__} come with the repository only: pass extractor='inception', or leave it out."
            )
        return with_weights(cls(), cls.file)
