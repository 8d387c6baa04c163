"""Traces one forward, operation by operation: which memory is written and read when, and what depends on the latents.

Memory is identified by storage, so a view counts as the tensor that it views. The trace keeps no tensor alive.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)
from typing_extensions import Self

from diffcache.discovery.effects import effect_of
from diffcache.discovery.flops import flops_of
from diffcache.host.call import version_of
from diffcache.host.leaves import tensors_of

Storage = int

Operation = tuple[int, list[Storage], list[Storage], list[Storage]]
"""Its number, the memory that it reads, that it writes, and that evolves if any that it reads does."""


_number = itemgetter(0)
_dynamo = torch._C._dynamo.eval_frame
_note = getattr(torch._C._dynamo.guards, "set_is_in_mode_without_ignore_compile_internals", None)
_IS_SKIPPED_BY_DYNAMO = hasattr(_dynamo, "_FrameExecStrategy")


def _note_modes() -> None:
    """Tells torch whether a mode of this thread wants to see inside compiled code: other threads may have left that noted wrongly."""
    if _note is not None:
        wants = any(not mode.ignore_compile_internals() for mode in _get_current_dispatch_mode_stack())
        _python_dispatch._is_in_any_mode_without_ignore_compile_internals = wants
        _note(wants)


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
        self._last_read: dict[Storage, int] = {}
        self._operations: list[Operation] = []
        self._views: list[tuple[int, Storage]] = []
        self._told = 0  # number of the newest operation that told the forward a tensor's content
        self._unseen = 0  # number of the newest operation that no dispatch has told
        self._is_untraced = False
        self._is_compiled = False
        self._evolving: set[Storage] = {self.storage(latent) for latent in latents}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions run compiled; `unit_returned` tells the trace what they returned."""
        return True

    def __enter__(self) -> Self:
        """Not as torch's: that notes for all threads at once which modes are entered, and notes it wrongly for good where two overlap."""
        _push_mode(self)
        _note_modes()
        return self

    def __exit__(self, *error: object) -> None:
        _pop_mode()
        _note_modes()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch is to hide `__torch_dispatch__` from Dynamo by a wrapper, which takes as long as the rest."""
        return not _IS_SKIPPED_BY_DYNAMO

    @contextmanager
    def untraced(self) -> Iterator[None]:
        """Inside, operations are not traced, because they are ours and not the forward's."""
        before, self._is_untraced = self._is_untraced, True
        try:
            yield
        finally:
            self._is_untraced = before

    @contextmanager
    def compiled(self, given: Sequence[Tensor]) -> Iterator[None]:
        """Inside, a compiled unit runs with these tensors. Only some of its operations can be seen, on memory of unknown origin.

        So none is noted, but their FLOPs count. The unit has written to those of the tensors whose versions have grown.
        """
        versions = [version_of(tensor) for tensor in given]
        before, self._is_compiled = self._is_compiled, True
        try:
            yield
        finally:
            self._is_compiled = before
        changed = [x for x, version in zip(given, versions, strict=True) if version_of(x) != version]
        if changed:
            written = [*dict.fromkeys(map(self.storage, changed))]
            self._note([*map(self.storage, given)], written, None)

    def unit_returned(self, given: Sequence[Tensor], outputs: Iterable[Tensor]) -> None:
        """Notes as written what a unit returned and no traced operation has touched: compiled code made it of what the unit was given."""
        reads = [*map(self.storage, given)]
        returned = dict.fromkeys(map(self.storage, outputs))
        made = self._make_unknown(storage for storage in returned if storage not in reads)
        if made:
            self._note(reads, made, None)
        else:
            self.now += 1

    def forward_returned(self, outputs: Iterable[Tensor]) -> None:
        """Notes as read what the forward returned."""
        self.now += 1
        for tensor in outputs:
            self._last_read[self.storage(tensor)] = self.now

    def storage(self, tensor: Tensor) -> Storage:
        """A key for a tensor's memory: no other memory of this forward has the same, even after this one is freed."""
        storage = tensor.untyped_storage()
        key: Storage = storage._cdata
        if key not in self._known:  # the address is not used again while this reference exists
            self._known[key] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        return key

    def evolves(self, tensors: Iterable[Tensor]) -> bool:
        """Whether any of these is computed from the latents."""
        return any(self.storage(tensor) in self._evolving for tensor in tensors)

    def each_evolves(self, memory: Iterable[Storage]) -> tuple[bool, ...]:
        """Which of this memory evolves."""
        return tuple(map(self._evolving.__contains__, memory))

    def writes(self, storage: Storage, begin: int, end: int) -> bool:
        """Whether operations begin < n <= end write to this memory."""
        return any(begin < n <= end for n in self._writes.get(storage, ()))

    def reads(self, memory: set[Storage], after: int) -> bool:
        """Whether operations n > after read any of this memory."""
        return any(self._last_read.get(storage, 0) > after for storage in memory)

    def reads_old(self, written: int, begin: int, end: int) -> bool:
        """Whether operations begin < n <= end read evolving memory that was last written at or before `written`."""
        return any(
            storage in self._evolving
            and (storage not in self._writes or self._writes[storage][-1] <= written)
            for _, reads, _, _ in self.operations(begin, end)
            for storage in reads
        )

    def leaks(self, skipped: Sequence[tuple[int, int]], replaced: set[Storage]) -> bool:
        """Whether operations after the `skipped` ones read anything that these would have written, beside `replaced`.

        Args:
            skipped: spans begin < n <= end, in order. Operations between two spans still run; what they compute from
                missing input is missing too.
            replaced: memory whose content the cache supplies at the end of the last span.
        """
        begin, end = skipped[0][0], skipped[-1][1]
        if not self.reads(self.written(begin, end) - replaced, end):
            return False
        missing: set[Storage] = set()
        for n, reads, writes, _ in self.operations(begin, end):
            if any(first < n <= last for first, last in skipped) or not missing.isdisjoint(reads):
                missing.update(writes)
        return self.reads(missing - replaced, end)

    def writes_outside(self, begin: int, end: int) -> bool:
        """Whether operations begin < n <= end write to memory that existed before them."""
        made, writes = self._made, self._writes
        return any(storage not in made or writes[storage][0] <= begin for storage in self.written(begin, end))

    def written(self, begin: int, end: int) -> set[Storage]:
        """The memory that operations begin < n <= end write to."""
        found: set[Storage] = set()
        for _, _, writes, _ in self.operations(begin, end):
            found.update(writes)
        return found

    def operations(self, begin: int, end: int) -> Sequence[Operation]:
        """The operations begin < n <= end that touch memory, but for views."""
        first, last = (bisect_right(self._operations, n, key=_number) for n in (begin, end))
        return self._operations[first:last]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        effect = effect_of(func)
        if effect.is_composite and not self._is_untraced and torch.is_inference_mode_enabled():
            with self:
                return func.decompose(*args, **kwargs)
        output = func(*args, **kwargs)
        if self._is_untraced:
            return output
        if self._is_compiled:
            self.flops += flops_of(func, args, kwargs, output) if effect.has_flops else 0
            return output
        if effect.is_view:
            viewed = self.storage(args[0])
            self._views.append((self.now, viewed))
            self._last_read[viewed] = self.now
            return output
        if effect.has_flops:
            self.flops += flops_of(func, args, kwargs, output)
        read = self._memory_of(
            [*args, *kwargs.values()] if effect.given is None else _taken(effect.given, args, kwargs)
        )
        changed = self._memory_of(_taken(effect.writes, args, kwargs)) if effect.writes else []
        if effect.has_out:
            self._make_unknown(changed)
        self._note(read, changed, output)
        if effect.tells_content:
            self._told = self.now
        return output

    def _make_unknown(self, memory: Iterable[Storage]) -> list[Storage]:
        """The part of this memory that nothing touched before: the next operation makes it. Compiled code makes memory without telling."""
        unknown = [s for s in memory if s not in self._writes and s not in self._last_read]
        if unknown:
            self._made.update(unknown)
            self._unseen = self.now + 1
        return unknown

    def _memory_of(self, values: Iterable[Any]) -> list[Storage]:
        """Of tensors, and of those in containers."""
        found: list[Storage] = []
        for value in values:
            if isinstance(value, Tensor):
                found.append(self.storage(value))
            elif value is not None:
                found += map(self.storage, tensors_of(value))
        return found

    def _note(self, read: list[Storage], changed: list[Storage], output: Any) -> None:
        """Notes an operation.

        Args:
            read: the memory that it was given.
            changed: the part of it that it wrote to.
            output: what it returned.
        """
        self.now = now = self.now + 1
        evolves = not self._evolving.isdisjoint(read)
        for storage in read:
            self._last_read[storage] = now
        aliased: list[Storage] = []
        for tensor in (output,) if isinstance(output, Tensor) else tensors_of(output):
            storage = self.storage(tensor)
            if storage in read:
                aliased.append(storage)
                continue
            if storage not in changed:
                changed.append(storage)
            self._made.add(storage)
        following = changed + aliased if aliased else changed
        if evolves:
            self._evolving.update(following)
        self._operations.append((now, read, changed, following))
        for storage in changed:
            if storage in self._writes:
                self._writes[storage].append(now)
            else:
                self._writes[storage] = [now]


if _IS_SKIPPED_BY_DYNAMO:  # it, and all that it calls
    _skip = _dynamo._FrameAction.SKIP
    _dynamo.set_code_exec_strategy(
        Trace.__torch_dispatch__.__code__, _dynamo._FrameExecStrategy(_skip, _skip)
    )


def _taken(places: Iterable[tuple[int, str]], args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments of an operation at these places, by index and name."""
    return [args[i] if i < len(args) else kwargs.get(name) for i, name in places]
