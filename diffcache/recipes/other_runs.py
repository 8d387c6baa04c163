"""In what a run differs from the one that a schedule was made in."""

import re
from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from diffcache.config import RunFacts
from diffcache.schedulers.schedule import GUIDANCE_OPTIONS, GUIDANCE_SCALE, INFLUENCE, Schedule

SCALE_TOLERANCE = 0.11
"""Scales of guidance that differ by less than this are the same. What a loop's steps show of its scale is rounded to a tenth."""

OPTION_TOLERANCE = 1e-2
"""Options of guidance that differ by less than this are the same."""

STEP_TOLERANCE = 1e-2
"""Influences that differ by less than this, as a fraction of the largest one, are the same."""

SIGMA_TOLERANCE = 1e-3
"""Noise levels that differ by less than this, as a fraction of the largest one, are the same."""


COUNTS_AND_HASH = re.compile(r"\d+ x | \([0-9a-f]{8}\)$")
"""What no reader needs of a format, as `quantization_of` describes it."""


def difference(made: Schedule, run: RunFacts, respaced: Callable[[], Tensor | None]) -> str | None:
    """Why a schedule cannot be followed in a run as it is, in the words of an error; None where it can.

    Args:
        made: the schedule.
        run: the run.
        respaced: the noise levels that the schedule gives its runs; None where it leaves them as they are.
    """
    if run.num_ticks != made.num_ticks:
        return f"{made.num_ticks} ticks and this run {run.num_ticks}"
    if run.noise_scheduler is not None and made.noise_scheduler not in (None, run.noise_scheduler):
        return f"the noise scheduler {made.noise_scheduler} and this run {run.noise_scheduler}"
    if run.sigmas is not None and made.sigmas is not None:
        levels = respaced()
        if not same_levels(run.sigmas, made.sigmas if levels is None else levels.tolist()):
            return "other noise levels than this run"
    latents = made.models[run.denoiser].latents if run.denoiser in made.models else ()
    if latents and run.latents and latents != run.latents:
        return f"latents of {list(latents[0])} and this run of {list(run.latents[0])}"
    return None


def other_guidance(made: Schedule, run: RunFacts) -> str | None:
    """What the report says where a schedule was made with another scale of guidance, or other options of it: the error that was measured is of those."""
    scale, here = made.predictor.get(GUIDANCE_SCALE), run.guidance.scale
    if scale is not None and here is not None and abs(scale - here) > SCALE_TOLERANCE:
        return f"the schedule was made with a guidance scale of {scale:g}, and this run has {here:g}: tune one for this scale, or compare the result"
    then, now = made.predictor.get(GUIDANCE_OPTIONS, {}), dict(run.guidance.options)
    for name in (name for name in then if name in now):
        if abs(then[name] - now[name]) > OPTION_TOLERANCE:
            return f"the schedule was made with {name}={then[name]:g}, and this run has {now[name]:g}: tune one for this, or compare the result"
    return None


def other_steps(made: Schedule, run: RunFacts) -> str | None:
    """What the report says where the noise scheduler has other options than when a schedule was made, and steps otherwise at the same noise levels."""
    if run.noise_scheduler is None or INFLUENCE not in made.predictor:
        return None
    then, now = made.predictor[INFLUENCE], run.on_result
    if run.num_ticks != made.num_ticks or (now is not None and _are_alike(then, now)):
        return None
    return f"the schedule was made with other options of {run.noise_scheduler}: tune one for these, or compare the result"


def other_weights(made: Schedule, run: RunFacts) -> str | None:
    """What the report says where a schedule was made with weights in another format: the error that was measured is of those."""
    then, now = made.quantization.get(run.denoiser), run.quantization
    if then == now or run.denoiser not in made.models:
        return None
    made_with, these = (weights_in(each and COUNTS_AND_HASH.sub("", each)) for each in (then, now))
    others = "the same in other layers" if these == made_with else these
    return f"the schedule was made with {made_with}, and these are {others}: tune one for these, or compare the result"


def weights_in(quantization: str | None) -> str:
    """How a sentence names weights of a format (see `quantization_of`); None: they are not quantised."""
    return "plain weights" if quantization is None else f"weights in {quantization}"


def same_levels(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether two lists of noise levels are the same."""
    scale = max(abs(sigma) for sigma in b)
    return len(a) == len(b) and all(abs(x - y) <= SIGMA_TOLERANCE * scale for x, y in zip(a, b, strict=True))


def _are_alike(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether two rows of influences are the same."""
    return np.allclose(a, b, rtol=0, atol=STEP_TOLERANCE * float(np.abs(a).max()))
