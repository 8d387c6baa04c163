"""Two processes serve the same requests together: `python two_ranks.py FOLDER` writes down what each found.

A program of its own, so that a deadlock ends as a time-out of the test.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from support.shared_loop import Client, Job, Waves, step_all
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from diffcache import decide_together, serving
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.signals import SecantGain

JOBS = (
    Job("easycache", (("threshold", 2.0), ("warmup_steps", 2)), steps=10, seed=1),
    Job(
        "easycache", (("threshold", 2.0), ("warmup_steps", 1), ("per_sample", True)), steps=10, seed=2, rows=2
    ),
    Job("uniform", (("interval", 3),), steps=10, seed=3, guidance="batched"),
    Job(steps=10, seed=4),
)
APART = Job("easycache", (("threshold", 2.0), ("warmup_steps", 1)), steps=10, seed=5, guidance="apart")


class Communicating(Waves):
    """Each forward meets the other process: one that skipped it would leave the other waiting."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        rows = torch.tensor([float(len(hidden_states))])
        dist.all_reduce(rows)
        assert rows.item() == 2 * len(hidden_states)
        return super().forward(hidden_states, *args, **kwargs)


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    counted, reduce, measure = [0], dist.all_reduce, SecantGain.measure

    def counting(tensor: Tensor, op: Any = dist.ReduceOp.SUM, **options: Any) -> Any:
        counted[0] += op == dist.ReduceOp.MAX
        return reduce(tensor, op=op, **options)

    def biased(self: SecantGain, latents: Any) -> Any:
        signal = measure(self, latents)
        return None if signal is None else signal * (1.0, 3.0)[rank]

    denoiser = Communicating()
    decide_together(denoiser, init_device_mesh("cpu", (2,)))
    SecantGain.measure = biased
    dist.all_reduce = counting
    found: dict[str, Any] = {"votes": []}
    bound = 10**6 if rank == 0 else 5000  # so that one process drops caches that the other keeps
    with serving(denoiser, max_cache_bytes=bound, eviction=()) as server:
        clients = [Client.of(server, job) for job in (*JOBS, APART)]
        while not clients[0].done:
            before = counted[0]
            step_all(server, denoiser, clients)
            found["votes"].append(counted[0] - before)
        for client in clients:
            found[client.request.name] = client.request.report().decisions.flatten().tolist()
        found["sums"] = [client.x.double().sum().item() for client in clients]
        found["evictions"] = server.stats().evictions
        try:
            server.request(4, config="uniform", site="block")
        except ConfigError as error:
            found["inside"] = str(error)
    try:
        with serving(denoiser, timeout=3):
            pass
    except ConfigError as error:
        found["timeout"] = str(error)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(work, args=(sys.argv[1],), nprocs=2, start_method="fork")
