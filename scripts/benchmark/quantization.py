"""Measures latency and memory of a Flux of random weights: plain, int8 and float8, each with and without a cache.

`python scripts/benchmark/quantization.py --device cuda --json evals/results/quantization_gpu.json` has the size of FLUX.1. Time is
the denoising loop's; runs with and without a cache take turns, medians over rounds.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from diffusers import FluxTransformer2DModel
from torch import Tensor

from diffcache import accelerate, denoising_run, report, restore
from diffcache.evals.harness.provenance import provenance
from diffcache.host.weight_formats import weight_bytes
from diffcache.schedulers.errors import ConfigError

WAYS = ("plain", "int8", "int8-weight-only", "float8", "float8-weight-only")
HEADS, HEAD_SIZE = 24, 128
TEXT_TOKENS = 512


def flux(heads: int, blocks: int) -> FluxTransformer2DModel:
    """FLUX.1 has 24 heads, 19 double-stream and twice as many single-stream blocks."""
    return FluxTransformer2DModel(
        num_layers=blocks,
        num_single_layers=2 * blocks,
        attention_head_dim=HEAD_SIZE,
        num_attention_heads=heads,
        joint_attention_dim=4096,
        pooled_projection_dim=768,
        guidance_embeds=True,
    )


def call(tokens: int, device: str) -> dict[str, Any]:
    """What the denoiser is given besides latents and time."""
    make = {"device": device, "dtype": torch.bfloat16}
    return {
        "encoder_hidden_states": torch.randn(1, TEXT_TOKENS, 4096, **make),
        "pooled_projections": torch.randn(1, 768, **make),
        "guidance": torch.full([1], 3.5, **make),
        "img_ids": torch.zeros(tokens, 3, **make),
        "txt_ids": torch.zeros(TEXT_TOKENS, 3, **make),
        "return_dict": False,
    }


@torch.no_grad()
def loop(
    net: torch.nn.Module, given: dict[str, Any], x: Tensor, ticks: int, interval: int
) -> dict[str, float]:
    """One denoising loop: seconds, and the most memory that was in use."""
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


def measured(way: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row without and one with a cache; or one that says why this machine cannot."""
    torch.manual_seed(0)
    with torch.device(args.device):
        net = flux(args.heads, args.blocks).to(torch.bfloat16).eval()
    given = call(args.tokens, args.device)
    x = torch.randn(1, args.tokens, 64, device=args.device, dtype=torch.bfloat16)
    try:
        accelerate(net, quantize=None if way == "plain" else way)
    except ConfigError as error:
        return [{"weights": way, "refused": str(error)}]
    if args.compile:
        net.compile_repeated_blocks()
    intervals = (1, args.interval)
    rounds = [[loop(net, given, x, args.ticks, i) for i in intervals] for _ in range(args.rounds + 1)][1:]
    model = weight_bytes(net)
    restore(net)
    return [
        {"weights": way, "interval": interval, "model_bytes": model}
        | {key: median(one[i][key] for one in rounds) for key in rounds[0][i]}
        for i, interval in enumerate(intervals)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--heads", type=int, default=HEADS)
    parser.add_argument(
        "--blocks", type=int, default=19, help="double-stream ones, and twice as many single-stream"
    )
    parser.add_argument("--tokens", type=int, default=4096, help="of the picture, 16 x 16 pixels each")
    parser.add_argument("--ticks", type=int, default=20)
    parser.add_argument("--interval", type=int, default=2, help="of the cache")
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms up")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--compile", action="store_true", help="the blocks")
    parser.add_argument("--json", type=Path, help="where the rows are written down")
    args = parser.parse_args()
    rows = [row for way in args.ways for row in measured(way, args)]
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    if args.json:
        name = torch.cuda.get_device_name() if args.device.startswith("cuda") else args.device
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({**provenance(name), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
