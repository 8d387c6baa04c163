"""Fidelity: how close a picture or video is to that of the same pipeline and seed without cache."""

from pathlib import Path

import torch
from torch import Tensor
from torchmetrics.functional.image import (
    learned_perceptual_image_patch_similarity,
    structural_similarity_index_measure,
)

from diffcache.evals.errors import EvaluationError
from diffcache.profiling.recording.pictures import psnr

__all__ = ["lpips", "lpips_weights", "psnr", "psnr_within", "ssim"]

SMALLEST = 6
"""Pixels on each side that SSIM needs: its window of 11 is mirrored at the edges."""

LPIPS_BACKBONE = "alexnet-owt-7be5be79.pth"


def psnr_within(region: Tensor, pictures: Tensor, reference: Tensor) -> Tensor:
    """PSNR in dB of each sample over some of its pixels, fp64 [N].

    Args:
        region: the pixels, bool [N, H, W]; some in each sample.
        pictures, reference: [N, C, H, W] in 0..1.
    """
    parts = zip(pictures, reference, region, strict=True)
    return torch.cat([psnr(one[None, :, pixels], other[None, :, pixels]) for one, other, pixels in parts])


def ssim(pictures: Tensor, reference: Tensor) -> Tensor:
    """Structural similarity of each sample, 0..1; that of a video is the mean over its frames.

    Args:
        pictures, reference: [N, C, H, W] or [N, F, C, H, W] in 0..1, at least 6 pixels on each side.

    Returns:
        fp32 [N].

    Raises:
        EvaluationError: these are smaller, or no pictures.
    """
    if pictures.ndim < 4 or min(pictures.shape[-2:]) < SMALLEST:
        raise EvaluationError(
            f"ssim needs pictures of {SMALLEST} pixels at least on each side, not a tensor of {list(pictures.shape)}: choose psnr."
        )
    frames, samples = pictures.flatten(0, -4), len(pictures)
    values = structural_similarity_index_measure(
        frames.float(), reference.flatten(0, -4).float(), data_range=1.0, reduction="none"
    )
    assert isinstance(values, Tensor)
    return values.reshape(samples, -1).mean(1)


def lpips_weights() -> Path:
    """Where AlexNet's weights have to be."""
    return Path(torch.hub.get_dir()) / "checkpoints" / LPIPS_BACKBONE


def lpips(pictures: Tensor, reference: Tensor) -> Tensor | None:
    """Learned perceptual distance with AlexNet, the mean over samples.

    AlexNet's weights are torchvision's. They are looked for in torch's hub folder; nothing is downloaded.

    Args:
        pictures, reference: [N, 3, H, W] or [N, F, 3, H, W] in 0..1, at least 64 pixels on each side.

    Returns:
        The distance; None if the weights are not on this machine, or for smaller pictures.
    """
    if not lpips_weights().exists() or min(pictures.shape[-2:]) < 64:
        return None
    distance: Tensor = learned_perceptual_image_patch_similarity(
        pictures.flatten(0, -4).float(), reference.flatten(0, -4).float(), net_type="alex", normalize=True
    )
    return distance
