"""Rendering: one call of a pipeline, as pictures and with what it cost."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from diffcache import report
from diffcache.config import CacheConfig
from diffcache.evals.harness.clock import loop_clock
from diffcache.profiling.recording.calling import accelerated
from diffcache.profiling.recording.pictures import pictures_of, rewound
from diffcache.reports.run_report import RunReport


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
    with loop_clock(pipe, rewound(call)) as (clock, timed):
        if config is None:
            return Rendered(pictures_of(pipe(**timed)), clock.seconds, clock.cpu_seconds)
        with accelerated(pipe, config):
            pictures = pictures_of(pipe(**timed))
            return Rendered(pictures, clock.seconds, clock.cpu_seconds, report(pipe))


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
