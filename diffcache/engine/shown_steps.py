"""Shows an observer the steps of a run."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from diffcache.engine.observers import Observer
from diffcache.engine.step_correction import StepCorrection, denoiser_input, guided_velocity
from diffcache.noise_schedulers.step_calls import StepCall
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.reports.records import TickCalls


class ShownSteps(StepCorrection):
    """Corrects nothing: an observer is told what each step gets and makes (`Observer.stepping`, `Observer.stepped`).

    Args:
        timetable: of the run.
        observer: is told.
    """

    def __init__(self, timetable: Timetable, observer: Observer) -> None:
        super().__init__(timetable)
        self._observer = observer

    def stepping(self, noise_scheduler: Any, tick: int, call: StepCall, called: TickCalls) -> StepCall:
        velocity = guided_velocity(self._timetable, noise_scheduler, tick, call)
        self._observer.stepping(tick, denoiser_input(noise_scheduler, call), velocity)
        return call

    def stepped(self, sample: Tensor) -> None:
        self._observer.stepped(sample)

    def forget(self) -> None:
        """Nothing is kept."""

    def tensors(self) -> Iterator[Tensor]:
        yield from ()
