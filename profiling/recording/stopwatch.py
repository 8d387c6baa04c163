"""What a place costs: wall time, and floating-point operations, from its begin to its end."""

import time

import torch

from diffcache.discovery.flops import FlopCount


class Stopwatch:
    """One place at a time. On a GPU it waits for the work that was queued, so a recording runs slower than a plain pipeline."""

    def __init__(self) -> None:
        self._begun: float | None = None
        self._counter: FlopCount | None = None

    def begin(self, *, counting: bool) -> None:
        """`counting`: operations too, which takes longer itself."""
        if counting:
            self._counter = FlopCount()
            self._counter.__enter__()  # type: ignore[no-untyped-call]
        self._begun = _now()

    def end(self) -> tuple[float | None, int | None]:
        """Seconds, and operations where they were counted; None where it was not begun."""
        seconds = None if self._begun is None else _now() - self._begun
        flops = None if self._counter is None else self._counter.total
        self.stop()
        return seconds, flops

    def stop(self) -> None:
        """Whatever has begun."""
        if self._counter is not None:
            self._counter.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._begun = self._counter = None


def _now() -> float:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return time.perf_counter()
