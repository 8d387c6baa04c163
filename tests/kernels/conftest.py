"""Kernels are compared with their references on the GPU where there is one, else in Triton's interpreter.

New memory is poisoned, so that what a kernel leaves unwritten shows.
"""

from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from diffcache.kernels.dispatch import SWITCH, Op, uses_triton

Compare = Callable[..., Any]

TOLERANCE = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (2e-6, 2e-6),
    torch.float16: (2**-10, 2e-6),
    torch.bfloat16: (2**-7, 2e-6),
}
"""Relative and absolute, by dtype of the result; eight bits and integers must be equal."""


@cache
def can_run_triton() -> bool:
    """Whether Triton is here, and can build for the GPU if there is one; the interpreter builds nothing."""
    installed = find_spec("triton") is not None
    return installed and (not torch.cuda.is_available() or uses_triton(torch.device("cuda")))


@pytest.fixture(autouse=True)
def _is_possible(request: pytest.FixtureRequest) -> None:
    """Skips the half of a test with `kernels` that needs Triton where that cannot run."""
    given = getattr(request.node, "callspec", None)
    if given is not None and given.params.get("kernels") == "triton" and not can_run_triton():
        pytest.skip("needs Triton")


@pytest.fixture
def device() -> Iterator[torch.device]:
    """The device of the test, which is the default while it runs; random numbers are seeded."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with device:
        torch.empty(
            0
        )  # torch lists the functions that get the default device at the first call: not while they are poisoned
        yield device


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops run as Triton kernels, on a CPU too; where Triton is missing or cannot build, as their references."""
    monkeypatch.setenv(SWITCH, "triton" if can_run_triton() else "reference")


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """New memory holds NaN, the largest integer, or True."""

    def poison(allocate: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def poisoned(*args: Any, **kwargs: Any) -> Tensor:
            memory = allocate(*args, **kwargs)
            if memory.dtype == torch.bool:
                return memory.fill_(True)
            return memory.fill_(torch.nan if memory.is_floating_point() else torch.iinfo(memory.dtype).max)

        return poisoned

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poison(getattr(owner, name)))


@pytest.fixture
def compare(device: torch.device, poisoned: None, triton: None) -> Compare:
    """Runs an op as a Triton kernel and as its reference, and returns the former's results if they are the same.

    fp32 may differ in the last digits, since sums are taken in another order; bf16 and fp16 in the last one, since the
    interpreter truncates where a GPU rounds.
    """

    def compare(op: Op[..., Any], *args: Any) -> Any:
        given, expected = op(*args), op.reference(*args)
        pairs = zip(_each(given), _each(expected), strict=True)
        for one, other in pairs:
            assert one.dtype == other.dtype
            rtol, atol = TOLERANCE.get(one.dtype, (0.0, 0.0))
            torch.testing.assert_close(one.double(), other.double(), rtol=rtol, atol=atol, equal_nan=True)
        return given

    return compare


def _each(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)
