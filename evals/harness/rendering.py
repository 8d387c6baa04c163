"""Rendering: one call of a pipeline, as pictures and with what it cost."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from diffcache.api import report
from diffcache.config import CacheConfig
from diffcache.evals.errors import EvaluationError
from diffcache.evals.harness.loop_time import timed_loop
from diffcache.profiling.recording.calling import accelerated
from diffcache.profiling.recording.pictures import pictures_of, rewound
from diffcache.reports.run_report import RunReport


@dataclass(frozen=True)
class Rendered:
    """What one pipeline call gave.

    Attributes:
        pictures: [N, C, H, W], or [N, F, C, H, W] for videos, fp32 in 0..1.
        seconds: wall time of the denoising loop.
        cpu_seconds: processor time of the denoising loop.
        report: None for a plain run.
    """

    pictures: Tensor
    seconds: float
    cpu_seconds: float
    report: RunReport | None = None

    @property
    def run_report(self) -> RunReport:
        """The report of an accelerated run."""
        assert self.report is not None
        return self.report


def render(pipe: Any, call: dict[str, Any], config: CacheConfig | None = None) -> Rendered:
    """Calls `pipe(**call)`, accelerated by `config` or plain; the pipeline is plain afterwards.

    Args:
        pipe: a plain pipeline.
        call: its keyword arguments. Generators among them are rewound first, so that a call can be repeated.
        config: the method; None for a plain run.

    Raises:
        EvaluationError: latents are asked for instead of pictures.
    """
    if call.get("output_type") == "latent":
        raise EvaluationError("output_type=latent: pictures are drawn and compared here: leave it out.")
    with timed_loop(pipe, rewound(call)) as (timer, timed):
        if config is None:
            return Rendered(pictures_of(pipe(**timed)), timer.seconds, timer.cpu_seconds)
        with accelerated(pipe, config):
            pictures = pictures_of(pipe(**timed))
            return Rendered(pictures, timer.seconds, timer.cpu_seconds, report(pipe))
