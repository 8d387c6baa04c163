"""What a model call costs the host: operations that it starts, and its time."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from diffcache.kernels.dispatch import Op
from diffcache.language.sampler.sampling import stream


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that PyTorch is asked for. Inside a compiled graph nothing is counted.

    Attributes:
        seen: all of them, by name.
        launched: those that start a kernel on a device; others return what they were given, or a view of it.
    """

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()
        self.launched = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[function.name().removeprefix("aten::").partition(".")[0]] += 1
        result = function(*args, **(kwargs or {}))
        given, made = _memory((args, kwargs)), _memory(result)
        self.launched += function._schema.is_mutable or not made <= given
        return result


@contextmanager
def kernels_as_one(counted: Operations) -> Iterator[None]:
    """Inside, an op of `diffcache.kernels` is one launch, as its Triton kernel is on a GPU."""
    run = Op.__call__

    def once(op: Any, *args: Any, **kwargs: Any) -> Any:
        counted.launched += 1
        with _disable_current_modes():
            return run(op, *args, **kwargs)

    with patch.object(Op, "__call__", once):
        yield


def _memory(values: Any) -> set[int]:
    """Where the tensors among these values lie."""
    return {x.untyped_storage().data_ptr() for x in tree_leaves(values) if isinstance(x, Tensor)}


@dataclass(frozen=True)
class HostCost:
    """Medians over the calls of a run.

    Attributes:
        launches: kernels that the host starts.
        operations: that PyTorch is asked for, views included.
        milliseconds: of a call.
    """

    launches: float
    operations: float
    milliseconds: float


def host_cost(model: Any, prompts: Tensor, **options: Any) -> HostCost:
    """Runs the sampler three times: to count launches, operations, and the time, which counting would change."""
    with Operations() as counted, kernels_as_one(counted):
        launches = _each_call(lambda: counted.launched, model, prompts, options)
    with Operations() as counted:
        operations = _each_call(counted.seen.total, model, prompts, options)
    seconds = _each_call(time.perf_counter, model, prompts, options)
    return HostCost(
        statistics.median(launches),
        statistics.median(operations),
        round(1000 * statistics.median(seconds), 3),
    )


def _each_call(
    told: Callable[[], float], model: Any, prompts: Tensor, options: dict[str, Any]
) -> list[float]:
    """By how much each call of a run moves a count on."""
    found, before = [], told()
    for _ in stream(model, prompts, **options):
        found.append(told() - before)
        before = told()
    return found
