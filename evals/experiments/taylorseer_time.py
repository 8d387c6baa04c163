"""How long TaylorSeer takes by the place where it reuses, ours and Diffusers': processor time of the loop over the full run's, in turns."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from diffcache.evals.harness.loop_time import ratio_in_turns
from diffcache.evals.harness.rendering import render
from diffcache.evals.race.contender import RaceSetup
from diffcache.evals.race.diffusers_peers import PEERS
from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.calling import accelerated
from diffcache.recipes.taylorseer import TaylorSeerConfig

INTERVAL, STEPS, SAMPLES = 3, 50, 8
PLACES = ("sub-layer", "block", "stack", "Diffusers, blocks")


def _attached(pipe: Any, testbed: str, place: str | None) -> AbstractContextManager[None]:
    if place is None:
        return nullcontext()
    if place != "Diffusers, blocks":
        return accelerated(pipe, TaylorSeerConfig(interval=INTERVAL, order=1, warmup_steps=3, site=place))
    peer = next(one for one in PEERS if one.name == "TaylorSeer")
    options = {
        "modules": "blocks", "max_order": 1, "before": 3, "after": False, "cache_interval": INTERVAL,
    }  # fmt: skip
    return peer.attach(pipe, options, RaceSetup(testbed, STEPS))


def _cpu_seconds(testbed: str, place: str | None = None) -> float:
    pipe = zoo.load(testbed)
    with _attached(pipe, testbed, place):
        return render(pipe, zoo.sample_call(testbed, 0, STEPS, SAMPLES)).cpu_seconds


def measured(testbed: str, rounds: int) -> Iterator[tuple[str, float]]:
    """Each place, and the share of the full run's processor time."""
    for place in PLACES:
        cached, full = partial(_cpu_seconds, testbed, place), partial(_cpu_seconds, testbed)
        yield place, ratio_in_turns(cached, full, rounds)
