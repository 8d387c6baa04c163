"""Times the denoising loop alone: text encoding and decoding are left out."""

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from diffcache.host.components import denoisers_of


class Instant(NamedTuple):
    """A moment: on the wall, and of the processor time that this process has spent, in seconds."""

    wall: float
    cpu: float


class LoopClock:
    """The time from the first denoiser call to the end of the last step, in seconds."""

    def __init__(self) -> None:
        self.start: Instant | None = None
        self.end = Instant(0.0, 0.0)

    @property
    def seconds(self) -> float:
        """On the wall."""
        return self.end.wall - self.start.wall if self.start is not None else 0.0

    @property
    def cpu_seconds(self) -> float:
        """Of processor time: on a CPU that others use too, what the loop itself took."""
        return self.end.cpu - self.start.cpu if self.start is not None else 0.0

    def begin(self, *_: Any) -> None:
        if self.start is None:
            self.start = _now()

    def lap(self) -> None:
        self.end = _now()


@contextmanager
def loop_clock(pipe: Any, call: dict[str, Any]) -> Iterator[tuple[LoopClock, dict[str, Any]]]:
    """Times one call of `pipe`; yields the clock and the arguments to call it with.

    The end of a step is its callback where the pipeline has one; else the noise scheduler's `step`.
    """
    clock = LoopClock()
    hooks = [module.register_forward_pre_hook(clock.begin) for module in denoisers_of(pipe).values()]
    scheduler = pipe.scheduler
    try:
        if "callback_on_step_end" in inspect.signature(pipe.__call__).parameters:
            yield clock, {**call, "callback_on_step_end": _lapping(clock, call.get("callback_on_step_end"))}
        else:
            with after_each_step(scheduler, clock.lap):
                yield clock, call
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def after_each_step(scheduler: Any, do: Callable[[], None]) -> Iterator[None]:
    """Calls `do` after every `step` of a noise scheduler."""
    outer = vars(scheduler).get("step")  # somebody else's, who waits for steps too

    def step(*args: Any, **kwargs: Any) -> Any:
        # Looked up now: accelerate swaps the class.
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


def _lapping(clock: LoopClock, callback: Callable[..., Any] | None) -> Callable[..., Any]:
    def on_step_end(pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> Any:
        clock.lap()
        return tensors if callback is None else callback(pipe, step, timestep, tensors)

    return on_step_end


def _now() -> Instant:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return Instant(time.perf_counter(), time.process_time())
