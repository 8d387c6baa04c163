"""The pictures of a pipeline call as tensors, and how close two of them are."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def psnr(pictures: Tensor, reference: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB of each sample, capped at 100 (identical).

    Args:
        pictures, reference: [N, ..., H, W] in 0..1; all dimensions but the first are one sample.

    Returns:
        fp64 [N].
    """
    error = (pictures.double() - reference.double()).square().flatten(1).mean(1)
    return (-10 * torch.log10(error.clamp_min(1e-10))).clamp_max(100.0)


def median_of(values: Tensor) -> float:
    """The median over samples [N]; where their number is even, the mean of the middle two."""
    return float(values.double().quantile(0.5))


def relative_errors(pictures: Tensor, reference: Tensor) -> Tensor:
    """Root mean square error of each sample, as a fraction of the standard deviation of its reference, of one 8-bit level at least.

    Args:
        pictures, reference: [N, ...]; all dimensions but the first are one sample.

    Returns:
        fp64 [N].
    """
    full, off = reference.double().flatten(1), (pictures.double() - reference.double()).flatten(1)
    return off.square().mean(dim=1).sqrt() / full.std(dim=1, correction=0).clamp_min(1 / 255)


def pictures_of(output: Any) -> Tensor:
    """The pictures or frames of a pipeline's output in any form, as fp32 in 0..1 with channels before height."""
    pictures = output[0] if isinstance(output, tuple) else next(iter(output.values()))
    if isinstance(pictures, list):
        pictures = torch.stack([_to_tensor(picture) for picture in pictures])
    pictures = _to_tensor(pictures).float().cpu()
    if pictures.shape[-1] == 3 and pictures.shape[-3] != 3:
        pictures = pictures.movedim(-1, -3)
    return pictures.clamp(0, 1)


def rewound(call: dict[str, Any]) -> dict[str, Any]:
    """The same keyword arguments, with all generators set back to their seeds, so that the call can be repeated."""
    for generator in generators(call):
        generator.manual_seed(generator.initial_seed())
    return call


def generators(call: dict[str, Any]) -> Iterator[torch.Generator]:
    """The generators among a call's keyword arguments."""
    given = call.get("generator")
    yield from given if isinstance(given, (list, tuple)) else [given] if given is not None else []


def _to_tensor(picture: Any) -> Tensor:
    if isinstance(picture, list):
        return torch.stack([_to_tensor(frame) for frame in picture])
    if hasattr(picture, "convert"):  # a PIL image
        from torchvision.transforms.functional import to_tensor

        tensor: Tensor = to_tensor(picture.convert("RGB"))
        return tensor
    return torch.as_tensor(picture)
