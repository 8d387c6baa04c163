"""Traces one forward, operation by operation: which memory is written and read when, and what depends on the latents.

Memory is identified by storage, so a view counts as the tensor that it views. The trace keeps no tensor alive.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from diffcache.discovery.flops import flops_of

Storage = int


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """One forward, as a sequence of operations numbered from 1.

    Memory evolves if it is computed from the latents: its content changes from tick to tick.

    Args:
        latents: the tensors that the denoiser denoises.

    Attributes:
        now: number of the newest operation.
        flops: floating-point operations so far (matrix products, convolutions, attention).
    """

    supports_higher_order_operators = True

    def __init__(self, latents: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.flops = 0
        self._known: dict[Storage, StorageWeakRef] = {}
        self._made: set[Storage] = set()
        self._writes: dict[Storage, list[int]] = {}
        self._reads: dict[Storage, list[int]] = {}
        self._operations: dict[int, tuple[set[Storage], set[Storage]]] = {}
        self._is_untraced = False
        self._evolving: set[Storage] = {self.storage(latent) for latent in latents}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions run compiled; `unit_returned` tells the trace what they returned."""
        return True

    @contextmanager
    def untraced(self) -> Iterator[None]:
        """Inside, operations are not traced, because they are ours and not the forward's."""
        self._is_untraced = True
        try:
            yield
        finally:
            self._is_untraced = False

    def unit_returned(self, given: Iterable[Tensor], outputs: Iterable[Tensor]) -> None:
        """Notes as written what a unit returned and no traced operation has touched: compiled code made it."""
        self.now += 1
        evolves = self.evolves(given)
        unseen = {self.storage(tensor) for tensor in outputs} - self._writes.keys() - self._reads.keys()
        self._operations[self.now] = set(), unseen
        for storage in unseen:
            self._made.add(storage)
            self._writes[storage] = [self.now]
            if evolves:
                self._evolving.add(storage)

    def forward_returned(self, outputs: Iterable[Tensor]) -> None:
        """Notes as read what the forward returned."""
        self.now += 1
        for tensor in outputs:
            self._reads.setdefault(self.storage(tensor), []).append(self.now)

    def storage(self, tensor: Tensor) -> Storage:
        """A key for a tensor's memory: no other memory of this forward has the same, even after this one is freed."""
        reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        key: Storage = reference.cdata
        self._known.setdefault(key, reference)  # the address is not reused while this reference exists
        return key

    def evolves(self, tensors: Iterable[Tensor]) -> bool:
        """Whether any of these is computed from the latents."""
        return any(self.storage(tensor) in self._evolving for tensor in tensors)

    def writes(self, storage: Storage, begin: int, end: int) -> bool:
        """Whether operations begin < n <= end write to this memory."""
        return any(begin < n <= end for n in self._writes.get(storage, ()))

    def reads(self, memory: set[Storage], after: int) -> bool:
        """Whether operations n > after read any of this memory."""
        return any(n > after for storage in memory for n in self._reads.get(storage, ()))

    def reads_old(self, written: int, begin: int, end: int) -> bool:
        """Whether operations begin < n <= end read evolving memory that was last written at or before `written`."""
        return any(
            storage in self._evolving
            and (storage not in self._writes or self._writes[storage][-1] <= written)
            for n in range(begin + 1, end + 1)
            for storage in self._operations.get(n, (set(), set()))[0]
        )

    def leaks(self, skipped: Sequence[tuple[int, int]], replaced: set[Storage]) -> bool:
        """Whether operations after the `skipped` ones read anything that these would have written, beside `replaced`.

        Args:
            skipped: spans begin < n <= end, in order. Operations between two spans still run; what they compute from
                missing input is missing too.
            replaced: memory whose content the cache supplies at the end of the last span.
        """
        begin, end = skipped[0][0], skipped[-1][1]
        if not any(
            storage not in replaced
            and any(begin < n <= end for n in writes)
            and any(n > end for n in self._reads.get(storage, ()))
            for storage, writes in self._writes.items()
        ):
            return False
        missing: set[Storage] = set()
        for n in range(begin + 1, end + 1):
            reads, writes = self._operations.get(n, (set(), set()))
            if any(first < n <= last for first, last in skipped) or reads & missing:
                missing |= writes
        return self.reads(missing - replaced, end)

    def writes_outside(self, begin: int, end: int) -> bool:
        """Whether operations begin < n <= end write to memory that existed before them."""
        return any(
            (storage not in self._made or writes[0] <= begin) and any(begin < n <= end for n in writes)
            for storage, writes in self._writes.items()
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if self._is_untraced:
            return output
        self.now += 1
        given = [self.storage(tensor) for tensor in _tensors((args, kwargs))]
        evolves = any(storage in self._evolving for storage in given)
        for storage in given:
            self._reads.setdefault(storage, []).append(self.now)
        changed = {self.storage(tensor) for tensor in _written(func, args, kwargs)}
        for tensor in _tensors(output):
            storage = self.storage(tensor)
            if storage not in given:
                changed.add(storage)
                self._made.add(storage)
            if evolves:
                self._evolving.add(storage)
        self._operations[self.now] = set(given), changed
        for storage in changed:
            self._writes.setdefault(storage, []).append(self.now)
            if evolves:
                self._evolving.add(storage)
        self.flops += flops_of(func, args, kwargs, output)
        return output


def _tensors(value: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_iter(value) if isinstance(leaf, Tensor))


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """The arguments that an operation writes to."""
    if not isinstance(func, OpOverload):
        return
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            yield from _tensors(value)
