"""Samples as files: pictures as PNG, videos as frames in a safetensors file, both in 8 bits and without loss."""

import os
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from diffcache.evals.errors import EvaluationError

PICTURE, VIDEO = ".png", ".safetensors"


def eight_bit(pictures: Tensor) -> Tensor:
    """Pictures in 0..1 as uint8 in 0..255, rounded."""
    return (pictures * 255).round().to(torch.uint8)


def to_pil(picture: Tensor) -> Any:
    """A picture [3, H, W] in 0..1 as a PIL image."""
    return Image.fromarray(eight_bit(picture).movedim(0, -1).contiguous().numpy())


def save_sample(sample: Tensor, path: Path) -> Path:
    """Writes a picture [3, H, W] or a video [F, 3, H, W] in 0..1; a reader never sees half of a file.

    Args:
        sample: the picture or video.
        path: without its ending, which depends on the sample.

    Returns:
        The path with its ending.
    """
    final = path.with_name(path.name + (PICTURE if sample.ndim == 3 else VIDEO))
    partial = final.with_name(f".{final.name}.{os.getpid()}")
    if sample.ndim == 3:
        to_pil(sample).save(partial, format="PNG")
    else:
        save_file({"frames": eight_bit(sample).contiguous()}, partial)
    partial.replace(final)
    return final


def load_sample(path: Path) -> Tensor:
    """A picture [3, H, W] or a video [F, 3, H, W] in 0..1, fp32.

    Raises:
        EvaluationError: the file cannot be read.
    """
    try:
        if path.suffix == VIDEO:
            return load_file(path)["frames"].float() / 255
        with Image.open(path) as image:
            pixels = bytearray(image.convert("RGB").tobytes())
            return (
                torch.frombuffer(pixels, dtype=torch.uint8)
                .view(image.height, image.width, 3)
                .movedim(-1, 0)
                .float()
                / 255
            )
    except (OSError, KeyError, SafetensorError) as error:
        raise EvaluationError(
            f"{path} cannot be read ({type(error).__name__}): delete it and run again."
        ) from error


def find_sample(path: Path) -> Path | None:
    """The file of a sample whose path is given without its ending; None if there is none."""
    files = (path.with_name(path.name + ending) for ending in (PICTURE, VIDEO))
    return next((file for file in files if file.exists()), None)
