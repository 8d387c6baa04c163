"""Compares a kernel's speed with a copy of as many bytes, its eager reference and its compiled reference.

A kernel whose results differ from the reference's gets no figures.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from diffcache.evals.kernels.cases import Case
from diffcache.kernels.dispatch import FP8

Clock = Callable[[Callable[[], Any]], float]
"""From a call to the seconds that it takes on the device (`graph_seconds`), or on the host (`host_seconds`)."""

CALLS = 20
"""In a graph."""

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
"""Relative, by dtype; eight-bit floats and integers must be equal."""

SHARE_OF_COPY, OVER_EAGER, OVER_COMPILED = 0.85, 2.0, 1.0
ELEMENTWISE = {
    "mean_abs",
    "l1_means",
    "secant_means",
    "subtract",
    "weighted_sum",
    "quantize_rows",
}
"""Kernels that should be as fast as a copy; the others are too small, or multiply matrices."""


@dataclass(frozen=True)
class Measurement:
    """The figures of one case.

    Attributes:
        model: that has such tensors.
        kernel: name of the op and its variant.
        bytes: that have to be moved.
        bytes_per_second: that the kernel moved, in device time.
        host_microseconds: that the host needs for a call.
        share_of_copy: its speed as a share of that of a device-to-device copy of as many bytes.
        over_eager: time of the eager reference over the kernel's.
        over_compiled: time of the compiled reference over the kernel's.
        meets_targets: whether it reaches 0.85 of the copy (elementwise kernels only), 2 over eager, and 1 over compiled.
    """

    model: str
    kernel: str
    bytes: int
    bytes_per_second: float
    host_microseconds: float
    share_of_copy: float
    over_eager: float
    over_compiled: float
    meets_targets: bool


@dataclass(frozen=True)
class Refusal:
    """A case without figures, because the kernel's results differ from the reference's.

    Attributes:
        model: that has such tensors.
        kernel: name of the op and its variant.
        difference: what differs.
    """

    model: str
    kernel: str
    difference: str


def measure(case: Case, clock: Clock, backend: str = "inductor") -> Measurement | Refusal:
    """Compares the op of a case with its reference, then times it; tensors are made on the default device.

    Args:
        clock: for device time.
        backend: what compiles the reference.
    """
    torch._dynamo.reset()  # else the limit of recompilations is reached, and what is measured is eager
    arguments = case.arguments()
    result, difference = _check(case, arguments)
    if difference is not None:
        return Refusal(case.model, case.name, difference)
    traffic = case.traffic(arguments, result)
    del result
    seconds = clock(lambda: case.op(*arguments))
    eager = clock(lambda: case.op.reference(*arguments))
    compiled_reference = torch.compile(case.op.reference, dynamic=False, backend=backend)
    compiled = clock(lambda: compiled_reference(*arguments))
    source = torch.empty(traffic // 2, dtype=torch.uint8)
    target = torch.empty_like(source)
    copied = clock(lambda: target.copy_(source))
    at_copy_speed = copied >= SHARE_OF_COPY * seconds or case.op.reference.__name__ not in ELEMENTWISE
    return Measurement(
        case.model,
        case.name,
        traffic,
        traffic / seconds,
        1e6 * host_seconds(lambda: case.op(*arguments)),
        copied / seconds,
        eager / seconds,
        compiled / seconds,
        at_copy_speed and eager >= OVER_EAGER * seconds and compiled >= OVER_COMPILED * seconds,
    )


def graph_seconds(call: Callable[[], Any]) -> float:
    """Device seconds of a call: calls are captured in a CUDA graph, whose replay takes the host no time.

    A call that cannot be captured is measured by events, which counts the host where that is slower.
    """
    for _ in range(3):  # compiles, and allocates
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(CALLS):
                call()
    except RuntimeError:
        torch.cuda.synchronize()
        return _median_by_events(call)
    return _median_by_events(graph.replay) / CALLS


def host_seconds(call: Callable[[], Any]) -> float:
    """Seconds until a call returns, while the device is kept from falling behind; median."""
    found = []
    for _ in range(CALLS):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return median(found)


def _median_by_events(call: Callable[[], Any], repeats: int = 15) -> float:
    found: list[float] = []
    for _ in range(repeats):
        begin: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        end.synchronize()
        found.append(1e-3 * begin.elapsed_time(end))
    return median(found)


def row(outcome: Measurement | Refusal) -> dict[str, Any]:
    """The outcome as it is written to JSON."""
    return asdict(outcome)


def _check(case: Case, arguments: tuple[Any, ...]) -> tuple[Any, str | None]:
    """The op's result, and how this, or the arguments that it writes to, differs from the reference's; None: not at all."""
    twins = copy.deepcopy(arguments)
    result, expected = case.op(*arguments), case.op.reference(*twins)
    try:
        for given, wanted in zip(_tensors((result, arguments)), _tensors((expected, twins)), strict=True):
            tolerance = TOLERANCE.get(given.dtype, 0.0)
            if given.dtype == FP8:
                given, wanted = given.float(), wanted.float()
            torch.testing.assert_close(given, wanted, rtol=tolerance, atol=min(tolerance, 2e-5))
    except AssertionError as error:
        return result, str(error)
    return result, None


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, (tuple, list)) else []
