"""Corrections in the noise scheduler's steps, where none in the denoiser's outputs can do the same."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from diffcache.noise_schedulers.quirks import model_input
from diffcache.noise_schedulers.step_calls import StepCall
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.reports.records import TickCalls


class StepCorrection(ABC):
    """Changes the calls of a noise scheduler's `step` in one run.

    Args:
        timetable: of the run.

    Attributes:
        has_seen_steps: a step was seen. A server's requests are stepped outside of it, so there it stays False.
    """

    def __init__(self, timetable: Timetable) -> None:
        self._timetable = timetable
        self.has_seen_steps = False

    @property
    def obstacle(self) -> str | None:
        """Why reused ticks were not corrected; None where they were, or were not to be."""
        return None

    @property
    def is_missing(self) -> bool:
        """Whether the result was to be corrected, and is not."""
        return False

    @abstractmethod
    def stepping(self, noise_scheduler: Any, tick: int, call: StepCall, called: TickCalls) -> StepCall:
        """A step is about to be made. Returns the call that is to be made instead.

        Args:
            noise_scheduler: of the run.
            tick: of the step.
            call: of the step.
            called: the calls at the tick; all of them are computed, or all are reused.
        """

    @abstractmethod
    def forget(self) -> None:
        """Drops every tensor: ticks that were reused before this are not corrected any more. It may end for the rest of the run."""

    @abstractmethod
    def tensors(self) -> Iterator[Tensor]:
        """What is kept for the cache's sake."""

    def recode(self) -> None:
        """From now on features are stored in another format. What is not stored in it stays as it is."""

    def stepped(self, sample: Tensor) -> None:
        """The step has been made, and this is the sample after it, which may be written to."""

    def _with(self, velocity: Tensor, noise_scheduler: Any, tick: int, call: StepCall) -> StepCall:
        """A call with another velocity."""
        of_velocity, of_input = self._timetable.parametrisation(tick)
        output = of_velocity * velocity + of_input * denoiser_input(noise_scheduler, call)
        return call._replace(output=output.to(call.output.dtype))


def guided_velocity(timetable: Timetable, noise_scheduler: Any, tick: int, call: StepCall) -> Tensor:
    """The velocity that the noise scheduler gets in a step, fp32."""
    of_velocity, of_input = timetable.parametrisation(tick)
    return (call.output.float() - of_input * denoiser_input(noise_scheduler, call)) / of_velocity


def denoiser_input(noise_scheduler: Any, call: StepCall) -> Tensor:
    """What the denoiser sees of a step's sample, fp32."""
    return model_input(noise_scheduler, call.sample, call.timestep).float()
