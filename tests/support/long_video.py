"""A tiny stock Wan and what its rollouts are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import WanTransformer3DModel
from torch import Tensor

from diffcache import rollout
from diffcache.rollouts.attending import BlockCausal, attended
from diffcache.rollouts.learning import Learned

TOKENS = 4
"""Of a latent frame."""


def tiny_wan(seed: int = 0, rows: int = 32) -> WanTransformer3DModel:
    """Three blocks with random weights, and rotary rows for so many frames."""
    torch.manual_seed(seed)
    return WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=16,
        ffn_dim=32,
        num_layers=3,
        rope_max_seq_len=rows,
    ).eval()


def chunks(frames: int, size: int, batch: int = 2, seed: int = 1) -> Sequence[Tensor]:
    """Random latents [batch, 4, size, 4, 4] of a video."""
    latents = torch.randn(batch, 4, frames, 4, 4, generator=torch.Generator().manual_seed(seed))
    return latents.split(size, 2)


def condition(batch: int = 2, seed: int = 2) -> dict[str, Any]:
    """A time, and a text of four tokens: as many as a frame has."""
    text = torch.randn(batch, TOKENS, 16, generator=torch.Generator().manual_seed(seed))
    return {"timestep": torch.full((batch,), 500.0), "encoder_hidden_states": text, "return_dict": False}


def rolled(net: Any, video: Any, parts: Sequence[Tensor], **call: Any) -> list[Tensor]:
    """The output of each chunk, which is written after it."""
    outputs = []
    for part in parts:
        outputs.append(video(part, **call)[0])
        video.write(part, **call)
    return outputs


def rolled_out(net: Any, parts: Sequence[Tensor], policy: Any = "everything", **options: Any) -> Tensor:
    """The outputs of a whole rollout, one after the other."""
    with torch.no_grad(), rollout(net, policy, **options) as video:
        return torch.cat(rolled(net, video, parts, **condition(len(parts[0]))), 2)


def in_one_forward(net: Any, learned: Learned, parts: Sequence[Tensor]) -> Tensor:
    """What block-causal attention gives for all chunks in one forward."""
    lengths = [part.shape[2] * TOKENS for part in parts]
    with torch.no_grad(), attended(learned.modules, BlockCausal(learned.sites, lengths).attend):
        return net(torch.cat(list(parts), 2), **condition(len(parts[0])))[0]
