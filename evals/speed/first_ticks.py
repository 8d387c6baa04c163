"""What a method with sites inside costs at the first tick of a denoiser's first run, and at that of later runs.

The denoiser is a Flux of 57 blocks with little work in each, and everything is computed. In a round, every method in turn
gets a copy of it, of which nothing is known yet. A first tick is compared with plain ticks of the same copy; that of a later
run with later ticks of the same run. Processor time is measured, so that a busy machine only widens the intervals.
"""

import copy
import random
import time
from statistics import median
from typing import Any

import torch

from diffcache.api import accelerate
from diffcache.attach.attach import denoising_run
from diffcache.evals.harness.intervals import interval_of_median
from diffcache.evals.speed.beside_peers import Tick, caller, flux

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "fbcache": ("fbcache", {"threshold": 0.0}),
    "teacache": ("teacache", {"threshold": 0.0, "coefficients": (1.0, 0.0)}),
    "taylorseer (every block)": ("taylorseer", {"interval": 1, "order": 1, "site": "block"}),
    "taylorseer (every sub-layer)": ("taylorseer", {"interval": 1, "order": 1}),
}

RUNS, TICKS, PLAIN = 5, 4, 3
"""In a round: runs of a method, ticks of a run, and plain ticks."""


def measure(rounds: int) -> dict[str, dict[str, list[float]]]:
    """By method: the first tick by a plain one, later runs' first ticks by their later ones, and the first one in ms."""
    net, shuffled = flux(19, 38), random.Random(0)
    found: dict[str, dict[str, list[float]]] = {
        name: {"first": [], "second": [], "first_ms": [], "plain_ms": []} for name in METHODS
    }
    with torch.no_grad():
        for _ in range(rounds):
            for name in shuffled.sample(list(METHODS), len(METHODS)):
                _round(copy.deepcopy(net), *METHODS[name], found[name])
    return found


def _round(net: Any, method: str, options: dict[str, Any], found: dict[str, list[float]]) -> None:
    call = caller(net)
    call(0)
    plain = median(_milliseconds(call, i) for i in range(PLAIN))
    accelerate(net, method, **options)
    for nth in range(RUNS):
        ticks = []
        with denoising_run(net, TICKS) as run:
            for i in range(TICKS):
                run.begin_step(i)
                ticks.append(_milliseconds(call, i))
        if nth == 0:
            found["plain_ms"].append(plain)
            found["first_ms"].append(ticks[0])
            found["first"].append(ticks[0] / plain)
        else:
            found["second"].append(ticks[0] / median(ticks[2:]))


def _milliseconds(call: Tick, i: int) -> float:
    start = time.process_time()
    call(i)
    return 1e3 * (time.process_time() - start)


def rows_of(found: dict[str, dict[str, list[float]]]) -> list[dict[str, Any]]:
    """Medians, and their intervals of 95 %."""
    return [
        {
            "method": name,
            "plain_ms": median(each["plain_ms"]),
            "first_tick_ms": median(each["first_ms"]),
            "first_tick": median(each["first"]),
            "first_tick_95": interval_of_median(each["first"]),
            "later_runs_first_tick": median(each["second"]),
            "later_runs_first_tick_95": interval_of_median(each["second"]),
        }
        for name, each in found.items()
    ]
