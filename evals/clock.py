"""Times the denoising loop alone: text encoding and decoding are left out."""

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from diffcache.targets import denoisers_of


class LoopClock:
    """The time from the first denoiser call to the end of the last step, in seconds."""

    def __init__(self) -> None:
        self.start: float | None = None
        self.end = 0.0

    @property
    def seconds(self) -> float:
        return self.end - self.start if self.start is not None else 0.0

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
            scheduler.step = _lapping_step(clock, scheduler)
            yield clock, call
    finally:
        scheduler.__dict__.pop("step", None)
        for hook in hooks:
            hook.remove()


def _lapping(clock: LoopClock, callback: Callable[..., Any] | None) -> Callable[..., Any]:
    def on_step_end(pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> Any:
        clock.lap()
        return tensors if callback is None else callback(pipe, step, timestep, tensors)

    return on_step_end


def _lapping_step(clock: LoopClock, scheduler: Any) -> Callable[..., Any]:
    def step(*args: Any, **kwargs: Any) -> Any:
        result = type(scheduler).step(scheduler, *args, **kwargs)  # looked up now: accelerate swaps the class
        clock.lap()
        return result

    return step


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
