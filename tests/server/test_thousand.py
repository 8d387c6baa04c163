"""A thousand requests of all kinds come, pause, abort and finish: each gets what it gets alone, and nothing is left."""

from __future__ import annotations

import gc
import random
from functools import cache

import pytest
import torch
from support.shared_loop import Client, Job, Waves, alone, step_all
from torch import Tensor

from diffcache import serving

KINDS = (
    (None, ()),
    ("easycache", (("threshold", 0.2), ("warmup_steps", 1))),
    ("easycache", (("threshold", 0.05), ("warmup_steps", 2), ("per_sample", True))),
    ("uniform", (("interval", 2), ("order", 1))),
    ("uniform", (("interval", 4), ("cache_dtype", "int8"))),
    ("even", (("speedup", 2.0),)),
    ("uniform", (("interval", 2), ("site", "block"))),
    ("fbcache", (("threshold", 0.2),)),
)
DENOISER = Waves()


@cache
def expected(job: Job) -> Tensor:
    return alone(DENOISER, job)


def job(dice: random.Random) -> Job:
    method, options = dice.choice(KINDS)
    guidance, rows = dice.choice(((None, 1), (None, 2), ("batched", 1), ("apart", 1)))
    return Job(method, options, dice.choice((4, 7, 10)), dice.randrange(3), guidance, rows)


def living_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


def simulated(requests: int, bound: int | None = None) -> dict[str, float]:
    """Requests arrive, up to 24 at once; at each batch some pause, and some abort. Returns what was seen."""
    dice = random.Random(0)
    waiting = [job(dice) for _ in range(requests)]
    live, done = list[Client](), list[Client]()
    seen = {"aborted": 0, "most_bytes": 0}
    with serving(DENOISER, max_cache_bytes=bound, eviction=()) as server:
        while waiting or live:
            for _ in range(min(dice.randrange(4), 24 - len(live), len(waiting))):
                live.append(Client.of(server, waiting.pop()))
            batch = [client for client in live if dice.random() < 0.8][:12]
            if batch:
                dice.shuffle(batch)
                step_all(server, DENOISER, batch)
                seen["most_bytes"] = max(seen["most_bytes"], server.stats().cached_bytes)
            for client in list(live):
                if client.done:
                    client.request.finish()
                    done.append(client)
                elif dice.random() < 0.01:
                    client.request.abort()
                    seen["aborted"] += 1
                else:
                    continue
                live.remove(client)
        stats = server.stats()
    assert len(done) + seen["aborted"] == requests
    assert (stats.cached_bytes, stats.ended["finished"]) == (0, len(done))
    for client in done:
        if not client.request.usage.evictions:
            assert torch.equal(client.x, expected(client.job)), client.job
    evicted = sum(bool(client.request.usage.evictions) for client in done)
    return {"hit_rate": stats.hit_rate, "evicted": evicted, "done": len(done), **seen}


def test_a_hundred_and_fifty_requests() -> None:
    before = living_tensors()
    seen = simulated(150)
    assert seen["hit_rate"] > 0.15
    assert seen["aborted"] > 0
    expected.cache_clear()
    assert living_tensors() <= before + 20


def test_a_bound_below_what_they_want_is_kept() -> None:
    free = simulated(100)["most_bytes"]
    bound = int(free / 3)
    seen = simulated(100, bound)
    assert seen["most_bytes"] <= bound
    assert 0 < seen["evicted"] < seen["done"]
    assert seen["hit_rate"] > 0.05


@pytest.mark.slow
def test_a_thousand_requests() -> None:
    simulated(30)
    expected.cache_clear()
    before = living_tensors()
    seen = simulated(1000)
    assert seen["done"] > 850
    expected.cache_clear()
    assert living_tensors() <= before + 20
