"""What computing a site costs: wall time and floating-point operations."""

import time
from contextlib import ExitStack

import torch

from diffcache.discovery.flops import FlopCount


class Stopwatch:
    """Measures from when it is made until it is stopped.

    On a GPU it waits for all work in the queue, so a recorded run is slower than a plain one.

    Args:
        counting: count floating-point operations too, which takes time itself.
    """

    def __init__(self, *, counting: bool) -> None:
        self._counting = ExitStack()
        self._counter = self._counting.enter_context(FlopCount()) if counting else None
        self._start = now()

    def stop(self) -> tuple[float, int | None]:
        """Seconds, and operations; None where they were not counted."""
        seconds = now() - self._start
        self._counting.close()
        return seconds, None if self._counter is None else self._counter.total


def now() -> float:
    """Seconds of wall time, once a GPU has done all work in its queue."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return time.perf_counter()
