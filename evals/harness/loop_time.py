"""The time of the denoising loop alone: text encoding and decoding are left out."""

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

from diffcache.host.components import denoisers_of
from diffcache.profiling.recording.stopwatch import now


class Instant(NamedTuple):
    """A moment, in seconds: `wall` time, and `cpu`, the processor time that this process has spent."""

    wall: float
    cpu: float


class LoopTimer:
    """The time from the first denoiser call to the end of the last step."""

    def __init__(self) -> None:
        self.start: Instant | None = None
        self.end = Instant(0.0, 0.0)

    @property
    def seconds(self) -> float:
        """Wall time."""
        return self.end.wall - self.start.wall if self.start is not None else 0.0

    @property
    def cpu_seconds(self) -> float:
        """Processor time: what the loop itself took on a CPU that others use too."""
        return self.end.cpu - self.start.cpu if self.start is not None else 0.0

    def denoiser_called(self, *_: Any) -> None:
        if self.start is None:
            self.start = _now()

    def step_ended(self) -> None:
        self.end = _now()


@contextmanager
def timed_loop(pipe: Any, call: dict[str, Any]) -> Iterator[tuple[LoopTimer, dict[str, Any]]]:
    """Times one call of `pipe`; yields the timer and the arguments to call it with.

    A step ends with its callback where the pipeline has one, else with the noise scheduler's `step`.
    """
    timer = LoopTimer()
    hooks = [
        module.register_forward_pre_hook(timer.denoiser_called) for module in denoisers_of(pipe).values()
    ]
    scheduler = pipe.scheduler
    try:
        if "callback_on_step_end" in inspect.signature(pipe.__call__).parameters:
            yield timer, {**call, "callback_on_step_end": _timing(timer, call.get("callback_on_step_end"))}
        else:
            with after_each_step(scheduler, timer.step_ended):
                yield timer, call
    finally:
        for hook in hooks:
            hook.remove()


def ratio_in_turns(first: Callable[[], float], second: Callable[[], float], rounds: int) -> float:
    """The median of `first` over `second`, measured in turns so that both see the same load of the machine."""
    return median(first() / second() for _ in range(rounds))


@contextmanager
def after_each_step(scheduler: Any, do: Callable[[], None]) -> Iterator[None]:
    """Calls `do` after every `step` of a noise scheduler."""
    outer = vars(scheduler).get("step")  # an outer `after_each_step` of the same noise scheduler

    def step(*args: Any, **kwargs: Any) -> Any:
        # Looked up at each step, because accelerate swaps the class.
        result = outer(*args, **kwargs) if outer else type(scheduler).step(scheduler, *args, **kwargs)
        do()
        return result

    scheduler.step = step
    try:
        yield
    finally:
        del scheduler.step
        if outer is not None:
            scheduler.step = outer


def _timing(timer: LoopTimer, callback: Callable[..., Any] | None) -> Callable[..., Any]:
    """A callback that tells the timer, then calls the one that was given."""

    def on_step_end(pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> Any:
        timer.step_ended()
        return tensors if callback is None else callback(pipe, step, timestep, tensors)

    return on_step_end


def _now() -> Instant:
    return Instant(now(), time.process_time())
