"""What denoisers of several kinds are given: a text of six tokens, and a latent clip beside it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor
from zoo.denoiser_case import Kwargs, randn, times

TEXT, WIDTH = 6, 16
"""Of a text: tokens, and channels of each."""
HEADS: Kwargs = {"num_attention_heads": 2, "attention_head_dim": 8}


def mask(batch: int, dtype: torch.dtype = torch.bool) -> Tensor:
    """A text mask whose last token is padding."""
    return (torch.arange(TEXT).expand(batch, -1) < TEXT - 1).to(dtype)


def clip(
    generator: Generator, batch: int, channels: int = 4, frames: int = 2, size: int = 4, **more: Any
) -> Kwargs:
    """A latent clip (batch, channels, frames, size, size) beside six tokens of text."""
    return {
        "hidden_states": randn(generator, batch, channels, frames, size, size),
        "timestep": times(batch, 1000.0),
        "encoder_hidden_states": randn(generator, batch, TEXT, WIDTH),
        "return_dict": False,
        **more,
    }
