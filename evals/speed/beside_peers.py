"""What a cache costs while it skips nothing: its own time per tick, beside the peers', on one model.

Every variant has its own copy of the same small Flux (many blocks, little work in each) and computes everything. In each
round all variants take a turn, in a shuffled order. Processor time is measured, so that a busy machine only widens the
intervals. Two plain copies are the control: a difference within their interval means nothing.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

import torch
from diffusers import FluxTransformer2DModel, TaylorSeerCacheConfig
from torch import Tensor

from diffcache.api import accelerate
from diffcache.attach.attach import denoising_run
from diffcache.evals.harness.intervals import interval_of_median
from diffcache.evals.speed.attach_cache_dit import NEARLY_NEVER, NEVER_REUSING, attach_cache_dit

WARM_UP = 8
NEVER = 10**9
"""A number of steps that no run reaches."""

BLOCKS = [r"(single_)?transformer_blocks\.\d+"]

Tick = Callable[[int], Any]


def flux(double: int = 10, single: int = 20) -> FluxTransformer2DModel:
    """Double and single blocks of width 64, the same weights each time."""
    torch.manual_seed(0)
    return FluxTransformer2DModel(
        in_channels=16, num_layers=double, num_single_layers=single, attention_head_dim=16, num_attention_heads=4,
        joint_attention_dim=64, pooled_projection_dim=32, guidance_embeds=False, axes_dims_rope=(4, 6, 6),
    ).eval()  # fmt: skip


def caller(net: FluxTransformer2DModel) -> Tick:
    """Calls a denoiser as a loop would, with another latent at each tick."""
    generator = torch.Generator().manual_seed(1)
    latents = [torch.randn(1, 64, 16, generator=generator) for _ in range(16)]
    fixed = {
        "encoder_hidden_states": torch.randn(1, 16, 64, generator=generator),
        "pooled_projections": torch.randn(1, 32, generator=generator),
        "img_ids": torch.zeros(64, 3), "txt_ids": torch.zeros(16, 3), "return_dict": False,
    }  # fmt: skip

    def call(i: int) -> Tensor:
        output: Tensor = net(hidden_states=latents[i % 16], timestep=torch.tensor([0.5]), **fixed)[0]
        return output

    return call


@contextmanager
def plain(ticks: int) -> Iterator[Tick]:
    yield caller(flux())


@contextmanager
def ours(ticks: int, method: str, **options: Any) -> Iterator[Tick]:
    net = accelerate(flux(), method, **options)
    call = caller(net)
    with denoising_run(net, ticks) as run:

        def tick(i: int) -> Any:
            run.begin_step(i)
            return call(i)

        yield tick


@contextmanager
def taylorseer(ticks: int, **options: Any) -> Iterator[Tick]:
    """Diffusers' TaylorSeer, by default on every attention; it updates its factors at each computed step."""
    net = flux()
    net.enable_cache(TaylorSeerCacheConfig(cache_interval=2, disable_cache_before_step=NEVER, **options))
    call = caller(net)
    with net.cache_context("cond"):
        yield call


@contextmanager
def cache_dit(ticks: int, method: str, front: int, *, taylor: bool = False) -> Iterator[Tick]:
    """A cache-dit method that never reuses."""
    net = flux()
    attach_cache_dit(net, method, front, taylor=taylor, **NEVER_REUSING)
    yield caller(net)


VARIANTS: dict[str, Callable[[int], Any]] = {
    "plain": plain,
    "plain again (A/A)": plain,
    "diffcache, trajectory (the default)": lambda ticks: ours(ticks, "trajectory", threshold=0.0),
    "diffcache, easycache": lambda ticks: ours(ticks, "easycache", threshold=NEARLY_NEVER),
    "diffcache, fbcache": lambda ticks: ours(ticks, "fbcache", threshold=NEARLY_NEVER),
    "diffcache, uniform (every block)": lambda ticks: ours(ticks, "uniform", interval=1, site="block"),
    "diffcache, taylorseer (every block)": lambda ticks: ours(
        ticks, "taylorseer", interval=1, order=1, site="block"
    ),
    "diffcache, taylorseer (every sub-layer)": lambda ticks: ours(ticks, "taylorseer", interval=1, order=1),
    "diffcache, taylorseer (every attention)": lambda ticks: ours(
        ticks, "taylorseer", interval=1, order=1, site="attention"
    ),
    "Diffusers, TaylorSeer": taylorseer,
    "Diffusers, TaylorSeer (every block)": lambda ticks: taylorseer(ticks, cache_identifiers=BLOCKS),
    "Diffusers, TaylorSeer (every block, fp32)": lambda ticks: taylorseer(
        ticks, cache_identifiers=BLOCKS, taylor_factors_dtype=torch.float32
    ),
    "cache-dit, F1": lambda ticks: cache_dit(ticks, "DBCache", 1),
    "cache-dit, F8 with TaylorSeer": lambda ticks: cache_dit(ticks, "DBCache", 8, taylor=True),
    "cache-dit, DBPrune (every block but one)": lambda ticks: cache_dit(ticks, "DBPrune", 1),
}


def measure(rounds: int) -> dict[str, list[float]]:
    """Processor seconds of each variant's tick in each round."""
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    shuffled = random.Random(0)
    with torch.no_grad(), ExitStack() as stack:
        ticks = {name: stack.enter_context(make(rounds + WARM_UP)) for name, make in VARIANTS.items()}
        for i in range(rounds + WARM_UP):
            for name in shuffled.sample(list(VARIANTS), len(VARIANTS)):
                start = time.process_time()
                ticks[name](i)
                times[name].append(time.process_time() - start)
    return {name: values[WARM_UP:] for name, values in times.items()}


def compared(times: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Each variant minus the plain model of the same round: the median and its bootstrap interval of 95 %, in ms."""
    rows = []
    for name, values in times.items():
        extra = [1e3 * (a - b) for a, b in zip(values, times["plain"], strict=True)]
        rows.append(
            {
                "variant": name,
                "tick_ms": 1e3 * median(values),
                "own_ms": median(extra),
                "interval_95_ms": interval_of_median(extra),
                "own_share": median(extra) / (1e3 * median(times["plain"])),
            }
        )
    return rows
