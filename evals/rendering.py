"""Rendering: one call of a pipeline, as pictures and with what it cost."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffcache import accelerate, report, restore
from diffcache.config import CacheConfig
from diffcache.evals.clock import loop_clock
from diffcache.reporting import RunReport


@dataclass(frozen=True)
class Rendered:
    """What one pipeline call gave.

    Attributes:
        pictures: [N, C, H, W], or [N, F, C, H, W] for videos, fp32 in 0..1.
        seconds: of the denoising loop, on the wall.
        cpu_seconds: of the denoising loop, in processor time.
        report: None for a plain run.
    """

    pictures: Tensor
    seconds: float
    cpu_seconds: float
    report: RunReport | None = None


def render(pipe: Any, call: dict[str, Any], config: CacheConfig | None = None) -> Rendered:
    """Calls `pipe(**call)`, accelerated by `config` or plain; the pipeline is plain afterwards.

    Args:
        call: its keyword arguments. A generator among them is rewound first, so that a call can be repeated.
    """
    for generator in _generators(call):
        generator.manual_seed(generator.initial_seed())
    with loop_clock(pipe, call) as (clock, timed):
        if config is None:
            return Rendered(pictures_of(pipe(**timed)), clock.seconds, clock.cpu_seconds)
        accelerate(pipe, config)
        try:
            pictures = pictures_of(pipe(**timed))
            return Rendered(pictures, clock.seconds, clock.cpu_seconds, report(pipe))
        finally:
            restore(pipe)


def pictures_of(output: Any) -> Tensor:
    """The pictures or frames of a pipeline's output, whichever form they have, as fp32 in 0..1 with channels before height."""
    pictures = output[0] if isinstance(output, tuple) else next(iter(output.values()))
    if isinstance(pictures, list):
        pictures = torch.stack([_to_tensor(picture) for picture in pictures])
    pictures = _to_tensor(pictures).float().cpu()
    if pictures.shape[-1] == 3 and pictures.shape[-3] != 3:
        pictures = pictures.movedim(-1, -3)
    return pictures.clamp(0, 1)


@contextmanager
def noise_scheduler(pipe: Any, replacement: Any) -> Iterator[None]:
    """Puts another noise scheduler into the pipeline for a while; None keeps its own."""
    own = pipe.scheduler
    if replacement is not None:
        pipe.scheduler = replacement
    try:
        yield
    finally:
        pipe.scheduler = own


def _generators(call: dict[str, Any]) -> list[torch.Generator]:
    given = call.get("generator")
    return list(given) if isinstance(given, (list, tuple)) else [given] if given is not None else []


def _to_tensor(picture: Any) -> Tensor:
    if isinstance(picture, list):
        return torch.stack([_to_tensor(frame) for frame in picture])
    if hasattr(picture, "convert"):  # a PIL image
        from torchvision.transforms.functional import to_tensor

        tensor: Tensor = to_tensor(picture.convert("RGB"))
        return tensor
    return torch.as_tensor(picture)
