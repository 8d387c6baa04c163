"""Memory is told by its storage, also when an address is used again, and the trace keeps none of it alive."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from diffcache.discovery.storage_trace import Trace


def test_memory_that_is_used_again_is_other_memory() -> None:
    x = torch.randn(1000)
    with Trace([x]) as trace:
        first = 2 * x
        key, address = trace.storage(first), first.data_ptr()
        evolving = trace.evolves([first])
        del first
        for _ in range(100):
            second = torch.ones(1000)
            if second.data_ptr() == address:
                break
        assert second.data_ptr() == address, "the allocator did not use the address again"
        assert trace.storage(second) != key
        assert evolving
        assert not trace.evolves([second])
        assert not trace.writes(trace.storage(second), 0, 1)


def test_the_trace_keeps_no_memory() -> None:
    x = torch.randn(1000)
    with Trace([x]):
        made = 2 * x
        reference = StorageWeakRef(made.untyped_storage())
        assert not reference.expired()
        del made
        assert reference.expired()
