"""What a model call costs the host: operations that it starts, and its time."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from diffcache.language.sampler.sampling import stream


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that PyTorch is asked for, by name. Inside a compiled graph nothing is counted."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[function.name().removeprefix("aten::").partition(".")[0]] += 1
        return function(*args, **(kwargs or {}))


@dataclass(frozen=True)
class HostCost:
    """Medians over the calls of a run that do not compute everything; over all calls where there is no such call.

    Attributes:
        operations: that the host starts.
        milliseconds: of a call.
    """

    operations: float
    milliseconds: float


def host_cost(model: Any, prompts: Tensor, **options: Any) -> HostCost:
    """Runs the sampler twice: once to count, and once for the time, which counting would change."""
    counts, times = [], []
    with Operations() as counted:
        before = 0
        for _ in stream(model, prompts, **options):
            now = counted.seen.total()
            counts.append(now - before)
            before = now
    start = time.perf_counter()
    for _ in stream(model, prompts, **options):
        times.append(1000 * (time.perf_counter() - start))
        start = time.perf_counter()
    return HostCost(statistics.median(counts), round(statistics.median(times), 3))
