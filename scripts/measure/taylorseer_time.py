"""How long TaylorSeer takes by the place where it reuses, ours and Diffusers': processor time of the loop over the full run's, in turns.

`python scripts/measure/taylorseer_time.py` prints a line for each place, in some minutes.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.loop_time import ratio_in_turns
from diffcache.evals.harness.rendering import render
from diffcache.evals.race.contender import Setup
from diffcache.evals.race.diffusers_peers import PEERS
from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.calling import accelerated
from diffcache.recipes.taylorseer import TaylorSeerConfig

INTERVAL, STEPS, SAMPLES = 3, 50, 8
PLACES = ("sub-layer", "block", "stack", "Diffusers, blocks")


def attached(pipe: Any, testbed: str, place: str | None) -> AbstractContextManager[None]:
    if place is None:
        return nullcontext()
    if place != "Diffusers, blocks":
        return accelerated(pipe, TaylorSeerConfig(interval=INTERVAL, order=1, warmup_steps=3, site=place))
    peer = next(one for one in PEERS if one.name == "TaylorSeer")
    options = {
        "modules": "blocks", "max_order": 1, "before": 3, "after": False, "cache_interval": INTERVAL,
    }  # fmt: skip
    return peer.attach(pipe, options, Setup(testbed, STEPS))


def cpu_seconds(testbed: str, place: str | None = None) -> float:
    pipe = zoo.load(testbed)
    with attached(pipe, testbed, place):
        return render(pipe, zoo.sample_call(testbed, 0, STEPS, SAMPLES)).cpu_seconds


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--testbed", default="flux", choices=("flux", "wan", "kontext"))
    options.add_argument("--rounds", type=int, default=5)
    args = options.parse_args()
    torch.set_num_threads(1)
    for place in PLACES:
        cached, full = partial(cpu_seconds, args.testbed, place), partial(cpu_seconds, args.testbed)
        print(f"{place}: {ratio_in_turns(cached, full, args.rounds):.1%}", flush=True)


if __name__ == "__main__":
    main()
