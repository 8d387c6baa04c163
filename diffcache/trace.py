"""Watches one forward operation by operation: which memory is written and read when, what follows from the latents.

Memory is told apart by storage, so views count as what they are views of. Nothing is kept alive by watching.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

Storage = int

_INNER_BIAS = 14
"""Place of the inner bias among the arguments after the source, of torch's fused encoder layer."""


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """One forward, as a sequence of operations numbered from 1.

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
        self._looks_aside = False
        self._evolving: set[Storage] = {self.storage(latent) for latent in latents}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions are compiled and run as they are; what they return is told by `returned`."""
        return True

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, operations are no part of the forward."""
        self._looks_aside = True
        try:
            yield
        finally:
            self._looks_aside = False

    def returned(self, given: Iterable[Tensor], outputs: Iterable[Tensor]) -> None:
        """A unit was given and returned these: that covers what it did out of sight, in compiled code."""
        self.now += 1
        follows = self.evolves(given)
        unseen = {self.storage(tensor) for tensor in outputs} - self._writes.keys() - self._reads.keys()
        self._operations[self.now] = set(), unseen
        for storage in unseen:
            self._made.add(storage)
            self._writes[storage] = [self.now]
            if follows:
                self._evolving.add(storage)

    def storage(self, tensor: Tensor) -> Storage:
        """What tells a tensor's memory from any other of this forward, freed or not."""
        reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        key: Storage = reference.cdata
        self._known.setdefault(key, reference)  # while it is referenced its address is not given away
        return key

    def evolves(self, tensors: Iterable[Tensor]) -> bool:
        """Whether any of these follows from the latents."""
        return any(self.storage(tensor) in self._evolving for tensor in tensors)

    def read_at_end(self, tensors: Iterable[Tensor]) -> None:
        """The forward returns these."""
        self.now += 1
        for tensor in tensors:
            self._reads.setdefault(self.storage(tensor), []).append(self.now)

    def writes(self, storage: Storage, begin: int, end: int) -> bool:
        """Whether operations begin < n <= end write to this memory."""
        return any(begin < n <= end for n in self._writes.get(storage, ()))

    def reads(self, memory: set[Storage], after: int) -> bool:
        """Whether operations n > after read any of this memory."""
        return any(n > after for storage in memory for n in self._reads.get(storage, ()))

    def reads_old(self, made: int, begin: int, end: int) -> bool:
        """Whether operations begin < n <= end read what follows from the latents and was finished by operation `made`."""
        return any(
            storage in self._evolving
            and (storage not in self._writes or self._writes[storage][-1] <= made)
            and any(begin < n <= end for n in reads)
            for storage, reads in self._reads.items()
        )

    def leaks(self, skipped: Sequence[tuple[int, int]], allowed: set[Storage]) -> bool:
        """Whether anything that the `skipped` operations make is used after them, other than through `allowed`.

        Args:
            skipped: spans begin < n <= end, in order. What lies between them is run all the same.
            allowed: memory that is made good at the end of the last span.
        """
        begin, end = skipped[0][0], skipped[-1][1]
        if not any(
            storage not in allowed
            and any(begin < n <= end for n in writes)
            and any(n > end for n in self._reads.get(storage, ()))
            for storage, writes in self._writes.items()
        ):
            return False
        wrong: set[Storage] = set()
        for n in range(begin + 1, end + 1):
            reads, writes = self._operations.get(n, (set(), set()))
            if any(first < n <= last for first, last in skipped) or reads & wrong:
                wrong |= writes
        return self.reads(wrong - allowed, end)

    def writes_outside(self, begin: int, end: int) -> bool:
        """Whether operations begin < n <= end wrote to memory that was there before them."""
        return any(
            (storage not in self._made or writes[0] <= begin) and any(begin < n <= end for n in writes)
            for storage, writes in self._writes.items()
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if self._looks_aside:
            return output
        self.now += 1
        given = [self.storage(tensor) for tensor in _tensors((args, kwargs))]
        follows = any(storage in self._evolving for storage in given)
        for storage in given:
            self._reads.setdefault(storage, []).append(self.now)
        changed = {self.storage(tensor) for tensor in _written(func, args, kwargs)}
        for tensor in _tensors(output):
            storage = self.storage(tensor)
            if storage not in given:
                changed.add(storage)
                self._made.add(storage)
            if follows:
                self._evolving.add(storage)
        self._operations[self.now] = set(given), changed
        for storage in changed:
            self._writes.setdefault(storage, []).append(self.now)
            if follows:
                self._evolving.add(storage)
        self.flops += _flops(func, args, kwargs, output)
        return output


def _flops(func: Any, args: Any, kwargs: dict[str, Any], output: Any) -> int:
    if not isinstance(
        func, OpOverload
    ):  # a higher-order operator (flex attention): its parts are not counted
        return 0
    if func._schema.name.startswith("aten::_scaled_dot_product"):  # the CPU's is not in the registry
        return int(sdpa_flop_count(args[0].shape, args[1].shape, args[2].shape))  # type: ignore[no-untyped-call]
    if func._schema.name in _FUSED:
        return _FUSED[func._schema.name](*args)
    count = flop_registry.get(func._overloadpacket)
    return 0 if count is None else int(count(*args, **kwargs, out_val=output))


def _attention_flops(query: Tensor, key: Tensor, *_: Any) -> int:
    """Of torch's fused `nn.MultiheadAttention` on [n, tokens, width]: four projections, and two products with the keys."""
    tokens, width = query.numel() // query.shape[-1], query.shape[-1]
    return int(2 * tokens * width * (4 * width + 2 * key.shape[-2]))


def _encoder_layer_flops(source: Tensor, *others: Any) -> int:
    """Of torch's fused `nn.TransformerEncoderLayer`: the attention, and two projections to and from the inner width."""
    inner = others[_INNER_BIAS].numel()
    return _attention_flops(source, source) + int(4 * source.numel() * inner)


_FUSED: dict[str, Callable[..., int]] = {
    "aten::_native_multi_head_attention": _attention_flops,
    "aten::_transformer_encoder_layer_fwd": _encoder_layer_flops,
}


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
