"""What a cache holds, measured alike for all: tensor memory alive in the middle of a run."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor

from diffcache.evals.harness.loop_time import after_each_step


def live_bytes() -> int:
    """Bytes of all tensors that Python can reach and that have memory; memory that several share is counted once."""
    gc.collect()
    storages = {}
    for found in gc.get_objects():
        kind = type(found)  # not isinstance: it asks lazy modules for their class, which imports them
        if (
            issubclass(kind, Tensor)
            and not issubclass(kind, FakeTensor)
            and not is_functorch_wrapped_tensor(found)
        ):
            storage = found.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


class LiveMemory:
    """Measures the memory once, after so many ticks.

    Args:
        ticks: after which.

    Attributes:
        bytes: alive then beyond what was alive when this object was made; None before that tick.
    """

    def __init__(self, ticks: int) -> None:
        self.bytes: int | None = None
        self._before = live_bytes()
        self._left = ticks

    def tick_ended(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.bytes = live_bytes() - self._before


@contextmanager
def live_memory(noise_scheduler: Any, ticks: int) -> Iterator[LiveMemory]:
    """Measures the tensors that are alive after so many steps of a noise scheduler, beyond those alive now."""
    memory = LiveMemory(ticks)
    with after_each_step(noise_scheduler, memory.tick_ended):
        yield memory
