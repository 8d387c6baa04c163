"""Two processes of one machine render together or side by side: `python two_processes.py FOLDER` writes down what they found.

It is a program of its own, so that a deadlock ends as a time-out of the tests. It imports once and then forks.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from diffusers import ContextParallelConfig
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from zoo.pipelines import CASES

from diffcache import TargetError, accelerate, decide_together, report, restore
from diffcache.schedulers.signals import Drift, SecantGain

STEPS = 6
FEWER_STEPS = 4
FLUX = CASES["FluxPipeline"]
PATIENCE = timedelta(seconds=60)

Found = dict[str, Any]


def flux() -> Any:
    return FLUX.build()


def context_parallel() -> Any:
    """The tokens are split between the two; Diffusers asks for an accelerator's number, which a CPU has not."""
    pipe, count = flux(), torch.accelerator.device_count
    torch.accelerator.device_count = lambda: 1
    try:
        pipe.transformer.enable_parallelism(config=ContextParallelConfig(ulysses_degree=2))
    finally:
        torch.accelerator.device_count = count
    return pipe


def tensor_parallel() -> Any:
    """The feed-forwards' weights are split between the two, as DTensors."""
    pipe, mesh = flux(), init_device_mesh("cpu", (2,))
    for block in pipe.transformer.transformer_blocks:
        plan = {"net.0.proj": ColwiseParallel(), "net.2": RowwiseParallel()}
        parallelize_module(block.ff, mesh, plan)
    return pipe


def sharded() -> Any:
    """FSDP: each has half of the weights, gathers a block's when it is called, and renders something of its own."""
    pipe, mesh = flux(), init_device_mesh("cpu", (2,))
    for block in [*pipe.transformer.transformer_blocks, *pipe.transformer.single_transformer_blocks]:
        fully_shard(block, mesh=mesh)
    fully_shard(pipe.transformer, mesh=mesh)
    return pipe


def declared() -> Any:
    """Nothing in the denoiser shows that the two compute together: `decide_together` says so."""
    pipe = flux()
    decide_together(pipe.transformer, init_device_mesh("cpu", (2,)))
    return pipe


WAYS: dict[str, Callable[[], Any]] = {
    way.__name__: way for way in (context_parallel, tensor_parallel, sharded, declared)
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("uniform", {"interval": 2, "order": 1, "basis": "output", "watch_bound": 0.5}),
    "static": ("uniform", {"interval": 2}),
    "model": ("easycache", {"threshold": 0.5, "warmup_steps": 2}),
    "stack": ("fbcache", {"threshold": 0.3}),
    "sub-layer": ("uniform", {"interval": 2, "site": "sub-layer"}),
    "each sample": ("easycache", {"threshold": 0.5, "warmup_steps": 2, "per_sample": True}),
}
TOGETHER = [
    *(("context_parallel", method) for method in METHODS),
    ("tensor_parallel", "model"),
    ("tensor_parallel", "stack"),
    ("sharded", "model"),
    ("declared", "model"),
]


@contextmanager
def votes() -> Iterator[Counter[str]]:
    """Counts the votes that this process takes part in."""
    counted, reduce = Counter[str](), dist.all_reduce

    def counting(tensor: Tensor, op: Any = dist.ReduceOp.SUM, **options: Any) -> Any:
        counted["votes"] += op == dist.ReduceOp.MAX
        return reduce(tensor, op=op, **options)

    dist.all_reduce = counting
    try:
        yield counted
    finally:
        dist.all_reduce = reduce


@contextmanager
def biased(factors: tuple[float, float]) -> Iterator[None]:
    """What signals measure is multiplied by a factor, another one in each process."""
    plain, factor = (SecantGain.measure, Drift.measure), factors[dist.get_rank()]

    def measuring(measure: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
        def measured(self: Any, latents: Any) -> Tensor | None:
            value = measure(self, latents)
            return None if value is None else value * factor

        return measured

    SecantGain.measure, Drift.measure = map(measuring, plain)
    try:
        yield
    finally:
        SecantGain.measure, Drift.measure = plain


def picture(pipe: Any, seed: int, steps: int = STEPS) -> Tensor:
    return FLUX.render(pipe, seed, steps, num_images_per_prompt=2)


def render(pipe: Any, seed: int, steps: int = STEPS) -> Found:
    with votes() as counted:
        image = picture(pipe, seed, steps)
    told = report(pipe)
    return {
        "ticks": told.computed_ticks,
        "reasons": sorted(told.reasons),
        "votes": counted["votes"],
        "image": image.flatten().tolist(),
    }


def together(way: str, method: str) -> Found:
    """Renders with a method: with everything computed, as the method decides, and with signals that contradict each other."""
    pipe, seed = WAYS[way](), dist.get_rank() if way == "sharded" else 0
    plain = picture(pipe, seed)
    name, options = METHODS[method]
    off = {"threshold": 0.0} if "threshold" in options else {"interval": 1}
    accelerate(pipe, name, **{**options, **off})
    exact = torch.equal(picture(pipe, seed), plain)
    accelerate(pipe, name, **options)
    found = {"exact": exact, "rendered": render(pipe, seed)}
    for who, factors in {"first": (1e6, 0.0), "second": (0.0, 1e6)}.items():
        with biased(factors):
            found[f"{who} computes"] = render(pipe, seed)
    found["restored"] = torch.equal(picture(restore(pipe), seed), plain)
    return found


def refused(way: str, method: str) -> str:
    """Why a method cannot be used."""
    name, options = METHODS[method]
    try:
        accelerate(WAYS[way](), name, **options)
    except TargetError as error:
        return str(error)
    return ""


def side_by_side() -> Found:
    """Plain data parallel: the two have other seeds and lengths, exchange nothing, and each renders as if it were alone."""
    rank = dist.get_rank()
    pipe = accelerate(flux(), "easycache", threshold=0.5, warmup_steps=1)
    with biased((1e6, 0.0)):
        return render(pipe, seed=rank, steps=(STEPS, FEWER_STEPS)[rank])


def work(rank: int, folder: Path) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=PATIENCE
    )
    found: dict[str, Found] = {"side by side": side_by_side()}
    for way, method in TOGETHER:
        found[f"{way} {method}"] = together(way, method)
    found["sharded stack"] = {"refused": refused("sharded", "stack")}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    mp.start_processes(work, (Path(sys.argv[1]),), nprocs=2, start_method="fork")
