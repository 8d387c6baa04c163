"""Some tokens only, beside tick caching: edits of a reference, and inpainting under a mask of a quarter of the picture."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from diffusers import FluxInpaintPipeline, FluxKontextInpaintPipeline
from torch import Tensor

from diffcache.config import RunFacts
from diffcache.evals.experiments.row_controls import (
    curved,
    elsewhere,
    text_left,
    true_key_values,
    true_outputs,
    withheld,
)
from diffcache.evals.experiments.ways import CACHED, Figures, Scene, Way, measured_at
from diffcache.evals.testbeds import zoo
from diffcache.recipes.uniform import UniformConfig
from diffcache.recipes.with_rows import WithRows
from diffcache.tokens.row_rule import RowRule

TRUTH = 1000
"""Steps of the run that stands for the truth."""

PICTURES = 28
"""Steps of the pictures of flux that are inpainted."""

QUARTER = slice(32, 64)
"""Rows and columns of the quarter that is painted, where the sticker of an edit lies too."""

CHANGED = 0.1
"""A pixel belongs to an edit where the full run differs from the reference by more than this in any channel, of 1."""

EVERYTHING = {"config": "uniform", "interval": 1}
"""Computes every tick."""

ORACLE = "regione: region and true K/V (oracle)"

DISTILLED = ("kontext_turbo",)
"""Testbeds of few steps: more of them are no truth."""


@dataclass(frozen=True, kw_only=True)
class OfOrder(WithRows):
    """Keys and values are extrapolated by a polynomial of another order.

    Attributes:
        order: its degree.
    """

    order: int

    def token_rows(self, run: RunFacts) -> RowRule:
        rule = super().token_rows(run)
        assert rule is not None
        return replace(rule, order=self.order)


def quarter(ring: int = 0) -> Tensor:
    """A mask of the lower right quarter of a picture of 64 pixels, and of so many pixels around."""
    mask = torch.zeros(64, 64, dtype=torch.bool)
    place = slice(QUARTER.start - ring, QUARTER.stop)
    mask[place, place] = True
    return mask


def of_order(order: int) -> dict[str, Any]:
    """Options: the tokens under the pipeline's own mask, keys and values extrapolated so."""
    return {"config": OfOrder(base=UniformConfig(interval=1), source=None, order=order)}


@contextmanager
def elsewhere_with_true_key_values() -> Iterator[None]:
    """Both."""
    with elsewhere(), true_key_values():
        yield


def ways_to_edit() -> list[Way]:
    """Tick caching, rows, both, RegionE with its ablation, and controls."""
    regione, undecayed = {"config": "regione"}, {"config": "regione", "delta": 0.0}
    region = {**EVERYTHING, "rows": "region"}
    return [
        *CACHED,
        Way("rows=context", {**EVERYTHING, "rows": "context"}),
        Way("rows=region", region),
        Way("rows=mask of the edit", {**EVERYTHING, "rows": quarter()}),
        Way("default, rows=region", {"rows": "region"}),
        Way("speedup=2, rows=region", {"speedup": 2.0, "rows": "region"}),
        Way("regione", regione),
        Way("regione: region and K/V", undecayed),
        Way("regione: region", undecayed, withheld),
        Way(ORACLE, undecayed, true_key_values),
        _against("regione", regione, "elsewhere", elsewhere),
        _against(ORACLE, undecayed, "elsewhere", elsewhere_with_true_key_values),
        _against("rows=region", region, "elsewhere", elsewhere),
        _against("rows=region", region, "K/V withheld", withheld),
    ]


def ways_to_inpaint() -> list[Way]:
    """Tick caching, rows under the pipeline's own mask, both, what their error is made of, and controls."""
    mask = {**EVERYTHING, "rows": "mask"}
    return [
        *CACHED,
        Way("rows=mask", mask),
        Way("default, rows=mask", {"rows": "mask"}),
        Way("speedup=2, rows=mask", {"speedup": 2.0, "rows": "mask"}),
        Way("rows=mask: K/V held", of_order(0)),
        Way("rows=mask: K/V on a parabola", of_order(2), curved),
        Way("rows=mask: a ring of tokens more", {**EVERYTHING, "rows": quarter(ring=8)}),
        Way("rows=mask: the text left as it was", mask, text_left),
        Way("rows=mask: true K/V (oracle)", mask, true_key_values),
        Way("rows=mask: true outputs outside (oracle)", mask, true_outputs),
        _against("rows=mask", mask, "K/V withheld", withheld),
    ]


def edited(testbed: str, steps: Sequence[int], samples: int) -> list[Figures]:
    """One row for each way to edit, and each number of steps: stickers, held-out prompts.

    PSNR in dB, the mean over samples and its bootstrap interval of 95 %: "own" is to the same testbed's full run, "region" the same in
    the pixels that the edit changes, "truth" to 1000 steps.
    """
    pipe, call = zoo.load(testbed), _edits(testbed, samples)
    references = call(1)["image"]
    scene = Scene(pipe, call, lambda full: changed(full, references), _truth(testbed, pipe, call))
    return [row for count in steps for row, _ in measured_at(scene, ways_to_edit(), count)]


def inpainted(testbed: str, steps: Sequence[int], samples: int) -> list[Figures]:
    """One row for each way to inpaint a quarter, which is the "region", and each number of steps.

    On flux its own pictures are painted, elsewhere references.
    """
    pipe, call = _filling(testbed, samples)
    scene = Scene(pipe, call, lambda full: quarter().expand(len(full), -1, -1), _truth(testbed, pipe, call))
    return [row for count in steps for row, _ in measured_at(scene, ways_to_inpaint(), count)]


def changed(pictures: Tensor, references: Tensor) -> Tensor:
    """The pixels that an edit changes, bool [batch, height, width]."""
    return (pictures - references).abs().amax(1) > CHANGED


def _against(
    name: str,
    options: dict[str, Any],
    said: str,
    broken: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Way:
    """A control beside what it breaks."""
    return Way(f"{name}, {said} (control)", options, broken, beside=name)


def stickers(count: int) -> list[str]:
    """Held-out prompts of edits that put a sticker on a picture."""
    return [text for text in zoo.prompts("kontext", 400, "heldout") if " with " in text][:count]


def _edits(testbed: str, samples: int) -> Callable[[int], dict[str, Any]]:
    return lambda steps: zoo.call_for(testbed, stickers(samples), range(samples), steps)


def _filling(testbed: str, samples: int) -> tuple[Any, Callable[[int], dict[str, Any]]]:
    """A testbed as an inpainting pipeline, and its call."""
    pipe = zoo.load(testbed)
    mask = {"mask_image": quarter()[None, None].float(), "strength": 1.0}
    if testbed == "flux":
        pictures = pipe(**zoo.sample_call("flux", 0, PICTURES, samples))[0]
        filling: Any = FluxInpaintPipeline(**pipe.components)
        call = lambda steps: {**zoo.sample_call("flux", 100, steps, samples), "image": pictures, **mask}
    else:
        edits = _edits(testbed, samples)
        filling = FluxKontextInpaintPipeline(**pipe.components)
        call = lambda steps: {**edits(steps), **mask}
    filling.set_progress_bar_config(disable=True)
    return filling, call


def _truth(testbed: str, pipe: Any, call: Callable[[int], dict[str, Any]]) -> Tensor | None:
    """Pictures of very many steps."""
    return None if testbed in DISTILLED else pipe(**call(TRUTH))[0]
