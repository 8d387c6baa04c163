"""Memory is told by its storage, also when an address is used again, and the trace keeps none of it alive."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from diffcache.discovery.storage_trace import Trace


def test_memory_that_is_used_again_is_other_memory() -> None:
    x, memory = torch.randn(1000), torch.zeros(1000).numpy()
    with Trace([x]) as trace:
        first = torch.from_numpy(memory).copy_(x)
        key, address = trace.storage(first), first.data_ptr()
        assert trace.evolves([first])
        del first
        second = torch.from_numpy(memory)
        assert second.data_ptr() == address
        assert trace.storage(second) != key
        assert not trace.evolves([second])
        assert not trace.writes(trace.storage(second), 0, trace.now)


def test_the_trace_keeps_no_memory() -> None:
    x = torch.randn(1000)
    with Trace([x]):
        made = 2 * x
        reference = StorageWeakRef(made.untyped_storage())
        assert not reference.expired()
        del made
        assert reference.expired()
