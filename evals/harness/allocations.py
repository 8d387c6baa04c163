"""Memory that a piece of code takes and gives back, allocation by allocation, as PyTorch's profiler sees it on a CPU."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True)
class Allocated:
    """What a piece of code did to the memory of tensors, in bytes.

    Attributes:
        peak: the most that was taken at once, beyond what was taken before.
        left: what is still taken after it. The result counts, if the caller keeps it.
    """

    peak: int
    left: int


def allocated_by(run: Callable[[], Any]) -> Allocated:
    """Runs code once under the profiler, and measures the tensors that it allocates on the CPU."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = run()
    assert profiled.profiler is not None
    found = profiled.profiler.kineto_results.events()
    events = sorted((event.start_ns(), event.nbytes()) for event in found if event.name() == "[memory]")
    peak = taken = 0
    for _, size in events:
        taken += size
        peak = max(peak, taken)
    del result
    return Allocated(peak, taken)
