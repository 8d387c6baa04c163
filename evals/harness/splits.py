"""What a search is given of a model's prompts: some to search on, some to confirm on, and some that are kept apart."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from accelerate import PartialState
from diffusers import DiffusionPipeline

from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.calling import Call


class Split(NamedTuple):
    """Calls of a pipeline, no prompt and seed of which lies in two parts.

    Attributes:
        searched: what candidates are rendered from.
        confirming: on which the best of them are compared with what the search began with; may be none.
        held_out: on which schedules are compared in the end.
    """

    searched: list[Call]
    confirming: list[Call]
    held_out: Call


def of_testbed(
    name: str, steps: int, samples: int, confirming: int, held_out: int, batch: int | None = None
) -> tuple[Any, Split]:
    """A testbed and its calls: calibration prompts to search and confirm on, held-out ones to compare on.

    Args:
        name: of `zoo.NAMES`.
        steps: of each call.
        samples, confirming, held_out: how many of each.
        batch: samples to a call; None: all of a part in one.
    """
    prompts = zoo.prompts(name, samples + confirming, "calibration")

    def calls(begin: int, end: int) -> list[Call]:
        return [
            zoo.call_for(name, prompts[part], range(1000 + part.start, 1000 + part.stop), steps)
            for part in _parts(begin, end, batch)
        ]

    kept = zoo.sample_call(name, 0, steps, held_out)
    return zoo.load(name), Split(calls(0, samples), calls(samples, samples + confirming), kept)


def of_prompts(
    model: str, prompts: Sequence[str], steps: int, confirming: int, batch: int | None = None
) -> tuple[Any, Split]:
    """A pipeline and calls of these prompts: the second half is held out, of the first the last `confirming` are for that.

    Args:
        model: a folder or a hub id.
        prompts: at least two more than twice `confirming`.
        steps, confirming, batch: as for `of_testbed`.
    """
    half = len(prompts) // 2
    searched = half - confirming

    def call(part: slice, seed: int) -> Call:
        asked = list(prompts[part])
        generators = [torch.Generator().manual_seed(seed + i) for i in range(len(asked))]
        return {
            "prompt": asked,
            "num_inference_steps": steps,
            "generator": generators,
            "output_type": "pt",
        }

    def calls(begin: int, end: int) -> list[Call]:
        return [call(part, 1000 + part.start) for part in _parts(begin, end, batch)]

    pipe = DiffusionPipeline.from_pretrained(model).to(PartialState().device)
    return pipe, Split(calls(0, searched), calls(searched, half), call(slice(half, None), 0))


def _parts(begin: int, end: int, size: int | None) -> list[slice]:
    """begin..end in parts of at most `size`."""
    step = size or max(end - begin, 1)
    return [slice(i, min(i + step, end)) for i in range(begin, end, step)]
