"""The zoo of denoisers: tiny instances with random weights of every denoiser class of Diffusers.

`CASES` is by name; `get` looks one up; `loop` runs one as a pipeline would. `REFUSED` holds networks that look like
denoisers and must not be cached. `UNBUILDABLE` says of every class that is not here why.
"""

from __future__ import annotations

import diffusers
from zoo import (
    audio_dits,
    controlnets,
    image_dits,
    joint_dits,
    other,
    packed_dits,
    paired_dits,
    sequence_dits,
    unets,
    unlike_unets,
    video_dits,
    video_stream_dits,
    wan_dits,
)
from zoo.denoiser_case import Case, loop, tensors

__all__ = ["CASES", "REFUSED", "UNBUILDABLE", "Case", "get", "loop", "tensors"]

FAMILIES = (
    packed_dits,
    image_dits,
    paired_dits,
    sequence_dits,
    wan_dits,
    video_dits,
    video_stream_dits,
    joint_dits,
    audio_dits,
    unets,
    unlike_unets,
    other,
)
INSTALLED = frozenset(dir(diffusers))


def by_name(entries: list[Case]) -> dict[str, Case]:
    """The cases whose class the installed Diffusers has; those of inner modules are taken on trust."""
    return {entry.name: entry for entry in entries if entry.exported is None or entry.exported in INSTALLED}


CASES: dict[str, Case] = by_name([entry for family in FAMILIES for entry in family.CASES])
REFUSED: dict[str, Case] = by_name(controlnets.CASES)
UNBUILDABLE: dict[str, str] = {
    "DreamLiteTransformer2DModel": "a block of DreamLiteUNetModel, never a pipeline's denoiser",
    "DualTransformer2DModel": "a block of UNets, never a pipeline's denoiser",
    "MiniMaxMusic3RVQDepthDecoder": "decodes tokens one after another: no noise, no time",
    "MotionAdapter": "a container of weights for UNetMotionModel: its forward is empty",
    "TransformerTemporalModel": "a block of UNets, never a pipeline's denoiser",
}


def get(name: str) -> Case:
    """The denoiser case of that name: a class name, with a suffix where a class has several cases."""
    return CASES[name]
