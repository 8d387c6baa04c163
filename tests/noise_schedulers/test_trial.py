"""What is tried out on a noise scheduler changes nothing for other threads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from support.compiling import Graphs
from torch.utils._python_dispatch import TorchDispatchMode

from diffcache.discovery.storage_trace import Trace
from diffcache.noise_schedulers.trial import nothing_drawn


class Plain(TorchDispatchMode):  # type: ignore[misc] # torch's have no types
    """A mode of somebody else's, such as those that a compiler enters."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_traced_call_compiles_once_whatever_modes_of_other_threads_have_overlapped() -> None:
    for modes in ((nothing_drawn(), nothing_drawn()), (Plain(), Trace([]))):
        one, other = modes
        with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
            first.submit(one.__enter__).result()
            second.submit(other.__enter__).result()
            first.submit(one.__exit__, None, None, None).result()
            second.submit(other.__exit__, None, None, None).result()
        graphs = Graphs()
        compiled = torch.compile(lambda x: x.sin(), backend=graphs)
        with Trace([]):
            for _ in range(3):
                compiled(torch.ones(2))
        assert graphs.compiled == 1
