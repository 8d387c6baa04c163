"""What a cache holds, by one ruler for all: tensor memory alive in the middle of a run, beyond that of a plain run."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor

from diffcache.evals.harness.clock import after_each_step


def live_bytes() -> int:
    """Bytes of all tensors that Python can reach and that have memory; what several share is counted once."""
    gc.collect()
    storages = {}
    for found in gc.get_objects():
        kind = type(found)  # isinstance asks lazy modules for their class, which imports them
        if (
            issubclass(kind, Tensor)
            and not issubclass(kind, FakeTensor)
            and not is_functorch_wrapped_tensor(found)
        ):
            storage = found.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


class Census:
    """Counts once, after the given tick.

    Attributes:
        bytes: what was alive then beyond what was before; None while the tick has not come.
    """

    def __init__(self, tick: int) -> None:
        self.bytes: int | None = None
        self._before = live_bytes()
        self._left = tick

    def tick(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.bytes = live_bytes() - self._before


@contextmanager
def census(pipe: Any, tick: int) -> Iterator[Census]:
    """Counts the tensors that are alive after the `tick`-th step of the pipeline's noise scheduler, beyond those of now."""
    counting = Census(tick)
    with after_each_step(pipe.scheduler, counting.tick):
        yield counting
