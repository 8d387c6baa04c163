"""What is tried out on a noise scheduler changes nothing for other threads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.compiling import Graphs

from diffcache.discovery.storage_trace import Trace
from diffcache.noise_schedulers.trial import nothing_drawn


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_traced_call_compiles_once_though_trials_of_two_threads_have_overlapped() -> None:
    one, other = nothing_drawn(), nothing_drawn()
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
