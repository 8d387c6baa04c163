"""Calls of a pipeline for a calibration or a search, and held-out ones to compare on (see `testbeds/splits.py`)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from accelerate import PartialState

from diffcache.evals.harness.pipelines import Source
from diffcache.evals.testbeds import splits, zoo
from diffcache.profiling.recording.calling import Call

FIRST_SEED: dict[splits.PromptSplit, int] = {
    "calibration": splits.PARTS["search"].seed,
    "heldout": splits.PARTS["choose"].seed,
}
"""Of the samples of a split; sample i has this seed plus i."""


class Split(NamedTuple):
    """Calls of a pipeline in three parts. No two parts share a prompt or a seed.

    Attributes:
        searched: candidates are rendered from these.
        confirming: the best candidates are compared on these with what the search began with; may be empty.
        held_out: in the end schedules are compared on this call.
    """

    searched: list[Call]
    confirming: list[Call]
    held_out: Call


def of_testbed(
    name: str, steps: int, samples: int, confirming: int, held_out: int, batch: int | None = None
) -> tuple[Any, Split]:
    """A testbed and its calls. Calibration prompts are searched and confirmed on, held-out ones compared on.

    Args:
        name: of `splits.FITTING`.
        steps: of each call.
        samples, confirming, held_out: the number of samples in each part.
        batch: samples in a call; None: one call for each part.
    """

    def calls(begin: int, end: int) -> list[Call]:
        return calls_of_testbed(name, "calibration", range(begin, end), steps, batch)

    (kept,) = calls_of_testbed(name, "heldout", range(held_out), steps)
    return zoo.load(name), Split(calls(0, samples), calls(samples, samples + confirming), kept)


def of_prompts(
    model: str, prompts: Sequence[str], steps: int, confirming: int = 0, batch: int | None = None
) -> tuple[Any, Split]:
    """A pipeline and calls of these prompts.

    The second half of the prompts is held out. The last `confirming` prompts of the first half confirm; the others of
    that half are searched on.

    Args:
        model: a folder or a hub id.
        prompts: at least two more than twice `confirming`.
        steps: of each call.
        confirming: the number of prompts that confirm.
        batch: samples in a call; None: one call for each part.
    """
    half = len(prompts) // 2
    searched = half - confirming
    source = Source(model, steps=steps)
    pipe = source.load(PartialState().device)

    def calls(begin: int, end: int) -> list[Call]:
        first = FIRST_SEED["calibration"]
        return [
            source.call_for(pipe, prompts[part], range(first + part.start, first + part.stop))
            for part in _parts(begin, end, batch)
        ]

    kept = source.call_for(pipe, prompts[half:], range(len(prompts) - half))
    return pipe, Split(calls(0, searched), calls(searched, half), kept)


def calls_of_testbed(
    name: str, split: splits.PromptSplit, samples: range, steps: int, batch: int | None = None
) -> list[Call]:
    """Calls for some samples of a testbed; sample i has the i-th prompt of the split and its own seed.

    Args:
        name: of `splits.FITTING`.
        split: which prompts.
        samples: their numbers.
        steps: of each call.
        batch: samples in a call; None: all in one.
    """
    prompts, first = zoo.prompts(name, samples.stop, split), FIRST_SEED[split]
    return [
        zoo.call_for(name, prompts[part], range(first + part.start, first + part.stop), steps)
        for part in _parts(samples.start, samples.stop, batch)
    ]


def call_of(testbed: str, use: splits.Use, steps: int, samples: int) -> Call:
    """One call for the first samples of a use, with its prompts and seeds."""
    part = splits.PARTS[use]
    return zoo.sample_call(testbed, part.seed, steps, samples, part.prompts)


def calibration_calls(name: str, samples: int, steps: int) -> list[Call]:
    """Two calls of a testbed's calibration prompts, half of the samples each: the same prompts from other seeds."""
    seeds = (FIRST_SEED["calibration"], 2 * FIRST_SEED["calibration"])
    return [zoo.sample_call(name, seed, steps, samples // 2, "calibration") for seed in seeds]


def _parts(begin: int, end: int, size: int | None) -> list[slice]:
    """begin..end in parts of at most `size`."""
    step = size or max(end - begin, 1)
    return [slice(i, min(i + step, end)) for i in range(begin, end, step)]
