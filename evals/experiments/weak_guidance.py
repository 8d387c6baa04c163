"""`speedup=` where guidance amplifies little although its scale is large: away from a negative prompt that resembles the prompt."""

from collections.abc import Iterator
from typing import Any

from diffcache.config import CacheConfig
from diffcache.evals.experiments.trajectory import SPEEDUPS, evens, figures
from diffcache.evals.harness.calls import call_of
from diffcache.evals.harness.cell import Cell
from diffcache.evals.harness.facts import run_facts
from diffcache.evals.harness.unseen import judged_on
from diffcache.evals.testbeds import procedural, zoo
from diffcache.recipes.budgeted import allowed
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.schedulers.guidance import Guidance

TESTBEDS = ("flux", "wan", "sd")
"""Their prompts name textures and sizes, which are few pixels of a picture."""
SCALE = 5.0

_OTHER = {
    "striped": "checked",
    "checked": "striped",
    "speckled": "striped",
    "small": "large",
    "large": "small",
}


def resembling(prompt: str) -> str:
    """A prompt with another texture of the first textured object, else with another size of the first object."""
    words = prompt.split()
    textured = [i for i, word in enumerate(words) if word in procedural.TEXTURES]
    sized = [i for i, word in enumerate(words) if word in procedural.SIZES]
    first, *_ = (*textured, *sized)
    return " ".join((*words[:first], _OTHER[words[first]], *words[first + 1 :]))


def compared(testbed: str, steps: int, samples: int) -> Iterator[dict[str, Any]]:
    """For each speed-up the PSNR in dB to the full run, by contender; all compute as many ticks.

    "prior" is planned with the amplification that its first tick shows, and "usual" with the one that this scale has on the testbeds with their own prompts.
    Both have a prior that has never seen the testbed. Medians are given, and under "samples" each sample's, which are paired.
    """

    def call(count: int) -> dict[str, Any]:
        asked = call_of(testbed, "choose", count, samples)
        weak = {"negative_prompt": [*map(resembling, asked["prompt"])]}
        return {**zoo.guided(testbed, asked, SCALE), **weak}

    cell = Cell(zoo.load(testbed), call, steps)
    found = run_facts(cell.pipe, call(steps)).guidance.amplification
    usual = Guidance(SCALE).amplification
    for speedup in SPEEDUPS:
        ticks = allowed(steps, speedup)
        with judged_on(testbed):
            contenders: dict[str, CacheConfig] = {
                **evens(speedup),
                "usual": TrajectoryConfig(speedup=speedup, amplification=usual),
                "prior": TrajectoryConfig(speedup=speedup),
            }
            near = {name: cell.method(config) for name, config in contenders.items()}
        planned = {name: near[name] for name in ("usual", "prior")}
        near["fewer_steps"] = cell.fewer_steps(ticks)
        yield {
            "steps": steps,
            "ticks": ticks,
            "scale": SCALE,
            "amplification": {"usual": round(usual, 2), "prior": found},
            **figures(near),
            "expected": {name: round(one.report.expected_error or 0.0, 5) for name, one in planned.items()},
            "measured": {name: round(cell.median_error(one), 5) for name, one in planned.items()},
        }
