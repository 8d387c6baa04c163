"""A tiny next-scale model: a picture's latents in ever finer scales, each predicted at once from the scales before it.

It is a VAR (Tian et al. 2024, arXiv 2404.02905) whose tokens are signs, as in Infinity (Han et al. 2024, arXiv 2412.04431): the
residual of the latents at a scale is kept as its signs, times a size for each scale and channel. Its attention has the form of
Infinity's: `caching`, `cached_k`, `cached_v`. B samples, n tokens of a scale, C = 16 channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from diffcache.evals.testbeds import procedural
from diffcache.evals.testbeds.half_weights import save_weights, with_weights

SIDES = (1, 2, 3, 4, 6, 8, 8)
"""Of each scale; the last comes twice, so that its signs are refined."""
CHANNELS = 16
FILE = Path(__file__).resolve().parent / "next_scale" / "model.safetensors"


class SelfAttention(nn.Module):
    """Attention whose keys and values are kept from scale to scale while `caching`.

    Attributes:
        caching: whether.
        cached_k, cached_v: of the scales before, [B, heads, tokens, channels]; None before the first.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.mat_qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.caching = False
        self.cached_k: Tensor | None = None
        self.cached_v: Tensor | None = None

    def kv_caching(self, enable: bool) -> None:
        self.caching, self.cached_k, self.cached_v = enable, None, None

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.mat_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.caching:
            if self.cached_k is not None and self.cached_v is not None:
                k, v = torch.cat((self.cached_k, k), 2), torch.cat((self.cached_v, v), 2)
            self.cached_k, self.cached_v = k, v
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        output: Tensor = self.proj(attended.transpose(1, 2).flatten(2))
        return output


class Block(nn.Module):
    """Attention and feed-forward, each modulated by the class."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.attn = SelfAttention(width, heads)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.ffn = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, condition: Tensor, mask: Tensor | None) -> Tensor:
        a, b, c, d, e, f = self.modulation(condition)[:, None].chunk(6, -1)
        x = x + (1 + c) * self.attn(self.norm1(x) * (1 + a) + b, mask)
        output: Tensor = x + (1 + f) * self.ffn(self.norm2(x) * (1 + d) + e)
        return output


class NextScale(nn.Module):
    """Draws latents [B, 16, 8, 8] of the wan testbed's first frames, by class.

    Args:
        width, heads, layers: of the transformer.
    """

    sizes: Tensor

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 10) -> None:
        super().__init__()
        self.embed = nn.Linear(CHANNELS, width)
        self.places = nn.ParameterList([nn.Parameter(torch.randn(side**2, width) * 0.02) for side in SIDES])
        self.label = nn.Embedding(procedural.NUM_CLASSES, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CHANNELS)
        self.register_buffer("sizes", torch.ones(len(SIDES), CHANNELS))

    def forward(
        self, inputs: Tensor, labels: Tensor, scales: Sequence[int], mask: Tensor | None = None
    ) -> Tensor:
        """Logits of the signs, [B, tokens, 16].

        Args:
            inputs: of the scales, one after the other: what is known before each of them, [B, tokens, 16].
            labels: classes, [B].
            scales: their indices.
            mask: of the attention; None where keys are cached.
        """
        condition = self.label(labels)
        x = self.embed(inputs) + torch.cat([self.places[k] for k in scales]) + condition[:, None]
        for block in self.blocks:
            x = block(x, functional.silu(condition), mask)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def decomposed(self, latents: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Each scale's input and signs in 0 and 1, [B, n, 16], and what all signs together give, [B, 16, 8, 8]."""
        inputs, signs, known = [], [], torch.zeros_like(latents)
        for k in range(len(SIDES)):
            inputs.append(self._input(known, k))
            rest = _resized(latents - known, SIDES[k])
            signs.append((rest > 0).float().flatten(2).mT)
            known = self._grown(known, signs[-1], k)
        return inputs, signs, known

    @torch.no_grad()
    def measure_sizes(self, latents: Tensor) -> None:
        """Sets the size of each scale's and channel's signs to the mean magnitude of what they stand for."""
        known = torch.zeros_like(latents)
        for k, side in enumerate(SIDES):
            rest = _resized(latents - known, side)
            self.sizes[k] = rest.abs().mean((0, 2, 3))
            known = self._grown(known, (rest > 0).float().flatten(2).mT, k)

    @torch.no_grad()
    def sample(self, labels: Tensor, generator: torch.Generator, temperature: float = 0.7) -> Tensor:
        """Latents [B, 16, 8, 8]: scale after scale, with cached keys and values, which are dropped at the end."""
        known = torch.zeros(len(labels), CHANNELS, SIDES[-1], SIDES[-1])
        attentions = [block.attn for block in self.blocks if isinstance(block, Block)]
        try:
            for attention in attentions:
                attention.kv_caching(True)
            for k, side in enumerate(SIDES):
                logits = self(self._input(known, k), labels, [k])
                chance = torch.rand(len(labels), side**2, CHANNELS, generator=generator)
                known = self._grown(known, (chance < (logits / temperature).sigmoid()).float(), k)
        finally:
            for attention in attentions:
                attention.kv_caching(False)
        return known

    def _input(self, known: Tensor, k: int) -> Tensor:
        """What is known before a scale, at its size: [B, n, 16]."""
        return _resized(known, SIDES[k]).flatten(2).mT

    def _grown(self, known: Tensor, signs: Tensor, k: int) -> Tensor:
        side = SIDES[k]
        values = ((2 * signs - 1) * self.sizes[k]).mT.reshape(len(signs), CHANNELS, side, side)
        grown: Tensor = known + functional.interpolate(
            values, SIDES[-1:] * 2, mode="bilinear", align_corners=False
        )
        return grown

    def save(self, file: Path = FILE) -> None:
        """Writes the weights in float16."""
        save_weights(self, file)

    @classmethod
    def load(cls, file: Path = FILE) -> NextScale:
        """The trained model in float32."""
        return with_weights(cls(), file)


def causal_mask() -> Tensor:
    """Which tokens of all scales see which: those of their scale and of the scales before."""
    scale = torch.cat([torch.full((side**2,), k) for k, side in enumerate(SIDES)])
    return scale[:, None] >= scale[None, :]


def _resized(latents: Tensor, side: int) -> Tensor:
    return functional.interpolate(latents, (side, side), mode="area")
