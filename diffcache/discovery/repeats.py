"""A trace that can note a stretch of operations once more, on other memory, without seeing them again."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from diffcache.discovery.storage_trace import NOTHING, Storage, Trace


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
        views: (number of the operation before it, memory) of each view that was taken meanwhile.
        reads, writes: by memory, the newest operation that read or viewed it, and all that wrote to it.
        made: the memory that they made.
        evolving: the part of the memory that they touched that evolved in the end.
        lasting: the part of `made` that lives on after them.
        touched: all memory that they read, viewed or wrote.
        told: one of them told the forward a tensor's content.
    """

    begin: int
    end: int
    flops: int
    views: list[tuple[int, Storage]]
    reads: dict[Storage, int]
    writes: dict[Storage, list[int]]
    made: set[Storage]
    evolving: set[Storage]
    lasting: set[Storage]
    touched: set[Storage]
    told: bool


class RepeatingTrace(Trace):
    """A trace whose stretches can be repeated."""

    def __init__(self, latents: Iterable[Tensor]) -> None:
        super().__init__(latents)
        self._unseen = count(-1, -1)  # keys of memory that was never seen: no address is negative

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
            self.__enter__()  # type: ignore[no-untyped-call]

    def point(self) -> tuple[int, int, int]:
        """Where the trace is now: numbers of operations, floating-point operations and views."""
        return self.now, self.flops, len(self._views)

    def since(self, point: tuple[int, int, int]) -> Stretch:
        """The stretch of operations from a point until now."""
        begin, flops, first_view = point
        views = self._views[first_view:]
        reads: dict[Storage, int] = {}
        writes: dict[Storage, list[int]] = {}
        for n in range(begin + 1, self.now + 1):
            read, changed = self._operations.get(n, NOTHING)
            reads.update(dict.fromkeys(read, n))
            for storage in changed:
                writes.setdefault(storage, []).append(n)
        for n, storage in views:
            reads[storage] = max(n, reads.get(storage, n))
        touched = reads.keys() | writes.keys()
        made = {s for s in touched if s in self._made and self._writes[s][0] > begin}
        lasting = {s for s in made if not self._known[s].expired()}  # type: ignore[no-untyped-call]
        evolving = touched & self._evolving
        told = self._told > begin
        count = self.flops - flops
        return Stretch(begin, self.now, count, views, reads, writes, made, evolving, lasting, touched, told)

    def are_alike(self, first: Stretch, other: Stretch, pairs: Pairs) -> bool:
        """Whether two stretches did the same, on memory that stands for each other."""
        shift = other.begin - first.begin
        if (first.end + shift, first.flops, len(first.views)) != (other.end, other.flops, len(other.views)):
            return False
        try:
            for n in range(first.begin + 1, first.end + 1):
                here, there = self._operations.get(n, NOTHING), self._operations.get(n + shift, NOTHING)
                for one, another in zip(here, there, strict=True):
                    pairs.put(one, another)
            for (n, viewed), (m, also_viewed) in zip(first.views, other.views, strict=True):
                pairs.put([viewed], [also_viewed])
                if n + shift != m:
                    return False
        except (Unlike, ValueError):  # other memory, or more or less of it
            return False
        kinds = (first.made, other.made), (first.evolving, other.evolving), (first.lasting, other.lasting)
        return all({pairs.to[storage] for storage in one} == another for one, another in kinds)

    def repeat(self, stretch: Stretch, pairs: Pairs) -> None:
        """Notes a stretch once more, now, on the memory that stands for its own.

        Memory for which none stands was made inside and is gone.
        """
        shift, to = self.now - stretch.begin, pairs.to
        gone = stretch.touched - to.keys()
        pairs.put(gone, [next(self._unseen) for _ in gone])
        for n in range(stretch.begin + 1, stretch.end + 1):
            read, changed = self._operations.get(n, NOTHING)
            self._operations[n + shift] = [to[x] for x in read], [to[x] for x in changed]
        self._views += [(n + shift, to[viewed]) for n, viewed in stretch.views]
        for storage, n in stretch.reads.items():
            self._last_read[to[storage]] = n + shift
        for storage, numbers in stretch.writes.items():
            self._writes.setdefault(to[storage], []).extend([n + shift for n in numbers])
        self._made.update(to[storage] for storage in stretch.made)
        self._evolving.update(to[storage] for storage in stretch.evolving)
        self.now, self.flops = stretch.end + shift, self.flops + stretch.flops
