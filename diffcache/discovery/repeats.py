"""A trace that can note a stretch of operations once more, on other memory, without seeing them again."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch.utils._python_dispatch import _get_current_dispatch_mode

from diffcache.discovery.storage_trace import Operation, Storage, Trace


class Unlike(Exception):
    """What was to be alike is not."""


@dataclass
class Pairs:
    """Which memory of one stretch of operations stands for which of another: one to one.

    Attributes:
        to: the other's, by the first's.
    """

    to: dict[Storage, Storage] = field(default_factory=dict)
    _back: dict[Storage, Storage] = field(default_factory=dict)

    def put(self, first: Iterable[Storage], other: Iterable[Storage]) -> None:
        """These stand for each other, one by one.

        Raises:
            Unlike: one of them stands for something else.
        """
        for one, another in zip(first, other, strict=True):
            if self.to.setdefault(one, another) != another or self._back.setdefault(another, one) != one:
                raise Unlike


@dataclass(frozen=True)
class Stretch:
    """The operations n with begin < n <= end.

    Attributes:
        flops: their floating-point operations.
        reads, writes: by memory, the newest operation that read or viewed it, and all that wrote to it.
        made: the memory that they made.
        operations: themselves, but for views.
        evolving: the part of the memory that they touched that evolved in the end.
        lasting: the part of `made` that lives on after them.
        touched: all memory that they read, viewed or wrote.
        told: one of them told the forward a tensor's content.
        is_seen: none of them was left out, as compiled code's are.
    """

    begin: int
    end: int
    flops: int
    reads: dict[Storage, int]
    writes: dict[Storage, list[int]]
    made: set[Storage]
    operations: Sequence[Operation]
    evolving: set[Storage]
    lasting: set[Storage]
    touched: set[Storage]
    told: bool
    is_seen: bool


class RepeatingTrace(Trace):
    """A trace whose stretches can be repeated."""

    @property
    def is_innermost(self) -> bool:
        """No other dispatch mode has been entered since this one."""
        return _get_current_dispatch_mode() is self

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, operations run as if there were no trace, and as fast. It must be the innermost mode."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            self.__enter__()

    def point(self) -> tuple[int, int, int]:
        """Where the trace is now: numbers of operations, floating-point operations and views."""
        return self.now, self.flops, len(self._views)

    def since(self, point: tuple[int, int, int]) -> Stretch:
        """The stretch of operations from a point until now."""
        begin, flops, first_view = point
        reads: dict[Storage, int] = {}
        writes: dict[Storage, list[int]] = {}
        operations = self.operations(begin, self.now)
        for n, read, changed, _ in operations:
            reads.update(dict.fromkeys(read, n))
            for storage in changed:
                writes.setdefault(storage, []).append(n)
        for n, storage in self._views[first_view:]:
            reads[storage] = max(n, reads.get(storage, n))
        touched = reads.keys() | writes.keys()
        made = {s for s in touched if s in self._made and self._writes[s][0] > begin}
        lasting = {s for s in made if not self._known[s].expired()}  # type: ignore[no-untyped-call]
        evolving = touched & self._evolving
        told, is_seen = self._told > begin, self._unseen <= begin
        count = self.flops - flops
        return Stretch(
            begin,
            self.now,
            count,
            reads,
            writes,
            made,
            operations,
            evolving,
            lasting,
            touched,
            told,
            is_seen,
        )

    def repeat(self, stretch: Stretch, pairs: Pairs, evolving: set[Storage]) -> None:
        """Notes a stretch once more, now, on the memory that stands for its own, as if it were one operation.

        Memory for which none stands is left out: no other operation touches it.

        Args:
            evolving: the part of the stretch's memory that stands for what evolves in the end.
        """
        shift, to = self.now - stretch.begin, pairs.to
        for storage, other in to.items():
            if storage in stretch.reads:
                self._last_read[other] = stretch.reads[storage] + shift
            if storage in stretch.writes:
                written = [n + shift for n in stretch.writes[storage]]
                self._writes.setdefault(other, []).extend(written)
            if storage in stretch.made:
                self._made.add(other)
            if storage in evolving:
                self._evolving.add(other)
        read = [other for storage, other in to.items() if storage in stretch.reads]
        changed = [other for storage, other in to.items() if storage in stretch.writes]
        self.now, self.flops = stretch.end + shift, self.flops + stretch.flops
        self._operations.append((self.now, read, changed, []))
