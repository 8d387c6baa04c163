"""Some tokens only, beside tick caching: edits of a reference, and inpainting under a mask of a quarter of the picture."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from diffusers import FluxInpaintPipeline
from torch import Tensor

from diffcache.api import accelerate, report, restore
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.tokens.attention import Completing
from diffcache.tokens.row_rule import Region

TRUTH = 1000
"""Steps of the run that stands for the truth."""

PICTURES = 28
"""Steps of the pictures that are inpainted."""

STICKER = slice(32, 64)
"""Rows and columns of the quarter that holds the sticker of an edit."""

EVERYTHING = {"config": "uniform", "interval": 1}


@dataclass(frozen=True)
class Way:
    """One way to run a call.

    Attributes:
        name: in the table.
        options: of `accelerate`.
        control: what is broken on purpose.
    """

    name: str
    options: dict[str, Any]
    control: Callable[[], AbstractContextManager[None]] = nullcontext


EVENLY = (
    Way("even, speedup=2", {"config": "even", "speedup": 2.0}),
    Way("uniform, every 2nd, the last", {"config": "uniform", "interval": 2, "order": 1}),
)
"""Tick caching that is spread evenly; the latter computes the last tick too."""


def quarter(right: bool = True) -> Tensor:
    """A mask of the lower right quarter of a picture of 64 pixels, or of the upper left one."""
    mask = torch.zeros(64, 64, dtype=torch.bool)
    place = STICKER if right else slice(0, 32)
    mask[place, place] = True
    return mask


def ways_to_edit() -> list[Way]:
    """Tick caching, rows, both, RegionE with its ablation, and controls."""
    return [
        Way("default", {}),
        Way("speedup=2", {"speedup": 2.0}),
        *EVENLY,
        Way("rows=context", {**EVERYTHING, "rows": "context"}),
        Way("rows=region", {**EVERYTHING, "rows": "region"}),
        Way("rows=mask of the edit", {**EVERYTHING, "rows": quarter()}),
        Way("default, rows=region", {"rows": "region"}),
        Way("speedup=2, rows=region", {"speedup": 2.0, "rows": "region"}),
        Way("regione", {"config": "regione"}),
        Way("regione without decay", {"config": "regione", "delta": 0.0}),
        Way("regione without decay and K/V (control)", {"config": "regione", "delta": 0.0}, control=withheld),
        Way("regione of the wrong region (control)", {"config": "regione"}, control=turned_round),
        Way("rows=mask, K/V withheld (control)", {**EVERYTHING, "rows": quarter()}, control=withheld),
        Way("rows=mask of the wrong place (control)", {**EVERYTHING, "rows": quarter(right=False)}),
    ]


def ways_to_inpaint() -> list[Way]:
    """Tick caching, rows under the pipeline's own mask, both, and controls."""
    return [
        Way("default", {}),
        Way("speedup=2", {"speedup": 2.0}),
        *EVENLY,
        Way("rows=mask", {**EVERYTHING, "rows": "mask"}),
        Way("default, rows=mask", {"rows": "mask"}),
        Way("speedup=2, rows=mask", {"speedup": 2.0, "rows": "mask"}),
        Way("rows=mask, K/V withheld (control)", {**EVERYTHING, "rows": "mask"}, control=withheld),
        Way("rows=mask of the wrong place (control)", {**EVERYTHING, "rows": quarter(right=False)}),
    ]


def edited(testbed: str, steps: Sequence[int], samples: int) -> list[dict[str, Any]]:
    """One row for each way to edit, and each number of steps: stickers, held-out prompts, medians of PSNR in dB.

    "own" is to the same testbed's full run, "region" the same in the quarter of the sticker, "truth" to kontext's 1000 steps, "kept" to the
    reference, where the edit leaves it alone.
    """
    prompts = [text for text in zoo.prompts("kontext", 400, "heldout") if " with " in text][:samples]
    pipe, teacher = zoo.load(testbed), zoo.load("kontext")

    def call(count: int) -> dict[str, Any]:
        return zoo.call_for(testbed, prompts, range(samples), count)

    truth = teacher(**zoo.call_for("kontext", prompts, range(samples), TRUTH))[0]
    references = call(1)["image"]
    return [
        {**row, "kept": median(pictures[:, :, :32], references[:, :, :32])}
        for row, pictures in measured(pipe, call, ways_to_edit(), steps, truth)
    ]


def inpainted(steps: Sequence[int], samples: int) -> list[dict[str, Any]]:
    """One row for each way to inpaint a quarter of flux's own pictures, and each number of steps; truth are 1000 steps."""
    pipe = zoo.load("flux")
    pictures = pipe(**zoo.sample_call("flux", 0, PICTURES, samples))[0]
    filling = FluxInpaintPipeline(**pipe.components)
    filling.set_progress_bar_config(disable=True)

    def call(count: int) -> dict[str, Any]:
        asked = zoo.sample_call("flux", 100, count, samples)
        return {**asked, "image": pictures, "mask_image": quarter()[None, None].float(), "strength": 1.0}

    truth = filling(**call(TRUTH))[0]
    return [row for row, _ in measured(filling, call, ways_to_inpaint(), steps, truth)]


def measured(
    pipe: Any, call: Callable[[int], dict[str, Any]], ways: list[Way], steps: Sequence[int], truth: Tensor
) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """Runs a call in full and in each way, at each number of steps."""
    for count in steps:
        yield from measured_at(pipe, lambda count=count: call(count), ways, count, truth)  # type: ignore[misc]


def measured_at(
    pipe: Any, call: Callable[[], dict[str, Any]], ways: list[Way], steps: int, truth: Tensor
) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """Runs a call in full and in each way."""
    full = pipe(**call())[0]
    yield row_of("full", steps, 1.0, "#" * steps, full, full, truth), full
    for way in ways:
        accelerate(pipe, **way.options)
        try:
            with way.control():
                pictures = pipe(**call())[0]
            done = report(pipe)
        finally:
            restore(pipe)
        first = done.branches[0]
        marks = "".join(one.mark for one in done.calls if one.branch == first and one.cached)
        row = row_of(way.name, steps, done.compute_fraction, marks, pictures, full, truth)
        print(row, flush=True)
        yield row, pictures


def row_of(
    name: str, steps: int, work: float, ticks: str, pictures: Tensor, full: Tensor, truth: Tensor
) -> dict[str, Any]:
    """A row of the table."""
    own = region = None
    if pictures is not full:
        own, region = median(pictures, full), median(corner_of(pictures), corner_of(full))
    return {
        "steps": steps, "way": name, "work": round(work, 3), "ticks": ticks, "own": own, "region": region,
        "truth": median(pictures, truth),
    }  # fmt: skip


def corner_of(pictures: Tensor) -> Tensor:
    """The quarter that is edited or painted."""
    return pictures[:, :, STICKER, STICKER]


def median(pictures: Tensor, other: Tensor) -> float:
    """Of PSNR in dB."""
    return round(float(psnr(pictures, other).median()), 1)


@contextmanager
def turned_round() -> Iterator[None]:
    """An edit's region is what it is not."""
    region = Region.__call__
    with patch.object(Region, "__call__", lambda self, sight: sight.moving & ~region(self, sight)):
        yield


@contextmanager
def withheld() -> Iterator[None]:
    """Keys and values of tokens that are not computed are left out."""
    with patch.object(Completing, "attend", lambda self, call: call.compute()):
        yield
