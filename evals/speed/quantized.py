"""Latency and memory of a Flux of random weights: plain, int8 and float8, each with and without a cache.

Time is the denoising loop's. Runs with and without a cache take turns; the figures are medians over rounds.
"""

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from diffusers import FluxTransformer2DModel
from torch import Tensor

from diffcache.api import accelerate, report, restore
from diffcache.attach.attach import denoising_run
from diffcache.host.weight_formats import weight_bytes
from diffcache.schedulers.errors import ConfigError

WEIGHTS = (
    "plain", "int8", "int8-asymmetric", "int8-weight-only", "float8", "float8-weight-only", "int4", "int4-hqq", "mxfp8", "nvfp4",
)  # fmt: skip
HEADS, HEAD_SIZE, BLOCKS = 24, 128, 19
"""FLUX.1's; it has twice as many single-stream as double-stream blocks."""
TEXT_TOKENS = 512


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is measured.

    Attributes:
        device: as torch names it.
        heads, blocks: of the model; `blocks` double-stream ones, and twice as many single-stream.
        tokens: of the picture.
        ticks: of the loop.
        interval: of the cache.
        rounds: that are measured, after one that warms up.
        compiled: whether the blocks are compiled.
    """

    device: str
    heads: int
    blocks: int
    tokens: int
    ticks: int
    interval: int
    rounds: int
    compiled: bool


def measured(weights: str, load: Workload) -> list[dict[str, Any]]:
    """A row without and one with a cache; or one that says why this machine refuses such weights."""
    torch.manual_seed(0)
    with torch.device(load.device):
        net = _flux(load.heads, load.blocks).to(torch.bfloat16).eval()
    given = _arguments(load.tokens, load.device)
    x = torch.randn(1, load.tokens, 64, device=load.device, dtype=torch.bfloat16)
    try:
        accelerate(net, quantize=None if weights == "plain" else weights)
    except ConfigError as error:
        return [{"weights": weights, "refused": str(error)}]
    if load.compiled:
        net.compile_repeated_blocks()
    intervals = (1, load.interval)
    rounds = [[_loop(net, given, x, load.ticks, i) for i in intervals] for _ in range(load.rounds + 1)][1:]
    model = weight_bytes(net)
    restore(net)
    return [
        {"weights": weights, "interval": interval, "model_bytes": model}
        | {key: median(one[i][key] for one in rounds) for key in rounds[0][i]}
        for i, interval in enumerate(intervals)
    ]


def _flux(heads: int, blocks: int) -> FluxTransformer2DModel:
    return FluxTransformer2DModel(
        num_layers=blocks,
        num_single_layers=2 * blocks,
        attention_head_dim=HEAD_SIZE,
        num_attention_heads=heads,
        joint_attention_dim=4096,
        pooled_projection_dim=768,
        guidance_embeds=True,
    )


def _arguments(tokens: int, device: str) -> dict[str, Any]:
    """What the denoiser is given besides latents and time."""
    make: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    return {
        "encoder_hidden_states": torch.randn(1, TEXT_TOKENS, 4096, **make),
        "pooled_projections": torch.randn(1, 768, **make),
        "guidance": torch.full([1], 3.5, **make),
        "img_ids": torch.zeros(tokens, 3, **make),
        "txt_ids": torch.zeros(TEXT_TOKENS, 3, **make),
        "return_dict": False,
    }


@torch.no_grad()
def _loop(
    net: torch.nn.Module, given: dict[str, Any], x: Tensor, ticks: int, interval: int
) -> dict[str, float]:
    """One denoising loop: its seconds, the most memory that was allocated, and the cache's bytes."""
    accelerate(net, "uniform", interval=interval)
    on_gpu = x.device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    with denoising_run(net, ticks, [1 - i / ticks for i in range(ticks)]) as run:
        for i in range(ticks):
            run.begin_step(i)
            t = torch.full([1], 1 - i / ticks, device=x.device, dtype=x.dtype)
            x = x - net(hidden_states=x, timestep=t, **given)[0] / ticks
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    return {"seconds": seconds, "peak_bytes": peak, "cache_bytes": report(net).cache_bytes}
