"""One pipeline call run in full, and how near a method or fewer plain steps come to that."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from diffcache.config import CacheConfig
from diffcache.evals.harness.rendering import Rendered, render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.profiling.recording.pictures import median_of, relative_errors
from diffcache.reports.run_report import RunReport


@dataclass(frozen=True)
class Nearness:
    """How near a run comes to the full one.

    Attributes:
        psnr: of each sample in dB.
        rendered: the run.
    """

    psnr: Tensor
    rendered: Rendered

    @property
    def median(self) -> float:
        """Over the samples, in dB, rounded to one digit."""
        return round(median_of(self.psnr), 1)

    @property
    def mean(self) -> float:
        """Over the samples, in dB."""
        return float(self.psnr.mean())

    @property
    def report(self) -> RunReport:
        """Of an accelerated run."""
        return self.rendered.run_report


class Cell:
    """A full run, and others beside it.

    Args:
        pipe: a plain pipeline.
        call: from a number of steps to the pipeline's arguments.
        steps: of the full run.
    """

    def __init__(self, pipe: Any, call: Callable[[int], dict[str, Any]], steps: int) -> None:
        self.pipe = pipe
        self.call = call
        self.steps = steps
        self._plain = dict[int, Rendered]()
        self.full = self._in_steps(steps).pictures

    def method(self, config: CacheConfig) -> Nearness:
        """A method."""
        return self._near(render(self.pipe, self.call(self.steps), config))

    def fewer_steps(self, steps: int) -> Nearness:
        """The plain pipeline with so many steps."""
        return self._near(self._in_steps(steps))

    def _in_steps(self, steps: int) -> Rendered:
        if steps not in self._plain:
            self._plain[steps] = render(self.pipe, self.call(steps))
        return self._plain[steps]

    def median_error(self, found: Nearness) -> float:
        """Over the samples: a picture's root mean square error, as a fraction of the standard deviation of the full run's picture."""
        return median_of(relative_errors(found.rendered.pictures, self.full))

    def _near(self, rendered: Rendered) -> Nearness:
        return Nearness(psnr(rendered.pictures, self.full), rendered)
