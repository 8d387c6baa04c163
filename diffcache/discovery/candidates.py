"""What may turn out to be a site, and what is kept of it until that is known."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from diffcache.discovery.site_finder import reason_against
from diffcache.discovery.site_names import range_of_stack
from diffcache.discovery.storage_trace import Trace
from diffcache.discovery.unit_recorder import UnitCall
from diffcache.host.call import Call

KeptT = TypeVar("KeptT")

Arguments = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
"""A module, and what it is called with."""


class Keeper(Protocol[KeptT]):
    """Keeps what computed sites returned."""

    def keep(self, kind: str, first: Call, output: Any, continues: Mapping[int, str]) -> KeptT:
        """Keeps what may turn out to be a site, in new memory; it is dropped if it is none.

        Args:
            kind: `Site.kind`, as far as it is known.
            first: the call of the site's first unit; of a site that is stored without its input, that of its last unit.
            output: what the site's last unit returned.
            continues: `Site.continues`.
        """

    def keep_again(
        self, like: KeptT, kind: str, call: Arguments, output: Any, continues: Mapping[int, str]
    ) -> KeptT:
        """Keeps what may turn out to be a site of one unit, of which an equal one has been kept.

        Args:
            like: what was kept of a block that is equal to this one, or of the same unit inside it.
            kind: `Site.kind`.
            call: of the unit.
            output: what it returned.
            continues: `Site.continues`, the same as of the other one.
        """

    def waiting(self, nbytes: Callable[[], int]) -> None:
        """Is called after each unit, with a function that counts the bytes still waiting to be kept."""


class GivenCall:
    """What the first unit of a site was given.

    Args:
        call: the unit's call, before the unit runs.
        copies: copy what a residual may be taken to, because the unit or a later one may write to that memory unnoticed.
    """

    def __init__(self, call: Call, *, copies: bool) -> None:
        self._state = call.state()
        self._copies = {id(t): t.clone() for t in _bases(call)} if copies else {}
        self._given = call.tensors.values()
        self.call = call.mapped(lambda t: self._copies.get(id(t), t)) if copies else call

    @property
    def nbytes(self) -> int:
        """Bytes of what a residual may be taken to."""
        return sum(tensor.nbytes for tensor in _bases(self.call))

    @property
    def is_overwritten(self) -> bool:
        """The arguments have been written to since the call, and have not been copied."""
        return not self._copies and bool(self.call.state() != self._state)

    def adapted(self, output: Any, *, copied: bool) -> Any:
        """An output in which the arguments that the site returns as they are stay arguments.

        Args:
            output: what the site's last unit returned.
            copied: copy everything else, because later units may write to it.
        """
        given = {id(tensor): self._copies.get(id(tensor), tensor) for tensor in self._given}

        def one(leaf: Tensor) -> Tensor:
            return given[id(leaf)] if id(leaf) in given else leaf.clone() if copied else leaf

        if isinstance(output, Tensor):
            return one(output)
        if type(output) is tuple and all(isinstance(leaf, Tensor) for leaf in output):
            return (*map(one, output),)  # nearly always, and ten times as fast
        return pytree.tree_map_only(Tensor, one, output)


@dataclass(eq=False)
class Span(Generic[KeptT]):
    """A block or a range of blocks that has been computed and waits to be kept.

    Attributes:
        kind: "block" or "range".
        begin: name of its first unit.
        given: what that was given.
        last: its last unit.
        output: a copy of what that returned.
    """

    kind: str
    begin: str
    given: GivenCall
    last: UnitCall
    output: Any

    @property
    def nbytes(self) -> int:
        return self.given.nbytes + sum(leaf.nbytes for leaf in _tensors(self.output))

    def kept_by(self, keeper: Keeper[KeptT], continues: Mapping[int, str]) -> KeptT | None:
        """Keeps it, and forgets the output; None if the arguments have been overwritten."""
        output, self.output = self.output, None
        if self.given.is_overwritten:
            return None
        return keeper.keep(self.kind, self.given.call, output, continues)


class Range(Generic[KeptT]):
    """A range of blocks that is a site.

    Args:
        name: "stack", "stack[3..7]" or "blocks.3..blocks.7".

    Attributes:
        begin: name of its first unit; "" before that is called.
        given: what that was given; None before it is called, and after the last unit has returned.
        newest: of a range up to the stack's end, what has been computed so far; None before the first block.
    """

    def __init__(self, name: str) -> None:
        self.begin = ""
        self.given: GivenCall | None = None
        self.newest: Span[KeptT] | None = None
        self._first: str | int
        self._last: str | int | None
        if name == "stack":
            self._first, self._last = 0, None
        else:
            self._first, self._last = range_of_stack(name) or name.split("..", 1)

    def begins_with(self, unit: UnitCall, index: int) -> bool:
        """Whether it begins with the top-level unit that is called now, which has this index in the stack."""
        return not self.begin and self._first in (unit.name, index)

    def ends_with(self, unit: UnitCall, index: int) -> bool:
        """Whether it ends with the top-level unit that has returned now."""
        return self.given is not None and self._last in (unit.name, index)

    def may_end_with(self, unit: UnitCall) -> bool:
        """Whether it goes up to the stack's end, which may be the unit that has returned now."""
        is_open = self.given is not None and self._last is None
        return is_open and unit.evolves and unit.is_in_list and bool(unit.made)

    @property
    def nbytes(self) -> int:
        """Bytes that wait until its end is known."""
        if self.newest is not None:
            return self.newest.nbytes
        return 0 if self.given is None else self.given.nbytes


class Depths(Generic[KeptT]):
    """The layers with which a UNet's depth may end, as `SiteFinder` finds them when the forward is over.

    Args:
        number: that of the depth that is a site. Depths are counted from the last one back, so as many ends are kept.
        trace: of the forward.

    Attributes:
        ends: what is kept of the newest ends, by name.
    """

    def __init__(self, number: int, trace: Trace) -> None:
        self.ends: dict[str, KeptT] = {}
        self._number = number
        self._trace = trace
        self._layers: list[UnitCall] = []
        self._newest: KeptT | None = None  # what is kept of the last one of these
        self._unsure: dict[str, KeptT] = {}  # ends unless the stack is over before the next layer

    def layer_returned(self, layer: UnitCall, block: UnitCall, keep: Callable[[], KeptT]) -> None:
        """A layer of a block has returned. The layer before it is an end if this one is given a long skip."""
        if self._newest is not None and self._ends_before(layer):
            self._unsure[self._layers[-1].name] = self._newest
        self._newest = None
        self._layers.append(layer)
        if block.is_in_list:
            self.ends |= self._unsure
            self._unsure = {}
            for name in list(self.ends)[: -self._number]:
                del self.ends[name]
        if layer.is_in_list:
            self._newest = keep()

    def _ends_before(self, layer: UnitCall) -> bool:
        """Whether a depth may end before this layer: it is given a long skip, and some span up to it can be skipped."""
        layers, before = self._layers, self._layers[-1]
        return self._trace.reads_old(before.begin, before.end, layer.end) and any(
            reason_against(layers[first:], self._trace) is None for first in reversed(range(len(layers)))
        )


def shapes_tell(call: Call, output: Any) -> bool:
    """Whether the shapes alone tell which argument each output continues.

    They do if no output has the shape of several arguments, and no two outputs that of one argument.
    """
    passed = {id(tensor) for tensor in call.tensors.values()}
    given = Counter(tensor.shape for tensor in _bases(call))
    made = Counter(
        leaf.shape for leaf in _tensors(output) if leaf.is_floating_point() and id(leaf) not in passed
    )
    return all(given[shape] == 0 or given[shape] == count == 1 for shape, count in made.items())


def without_arguments(call: Call, output: Any) -> tuple[Call, Any]:
    """A unit's call with arguments on the meta device, and its output. What was one tensor in both still is."""
    blank = {id(tensor): _blank(tensor) for tensor in call.tensors.values()}
    emptied = call.mapped(lambda tensor: blank.get(id(tensor), tensor))
    return emptied, pytree.tree_map_only(Tensor, lambda leaf: blank.get(id(leaf), leaf), output)


def _blank(tensor: Tensor) -> Tensor:
    """A tensor of the same form on the meta device."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _bases(call: Call) -> list[Tensor]:
    """The arguments that a residual may be taken to."""
    return [tensor for tensor in call.tensors.values() if tensor.is_floating_point() and tensor.ndim >= 2]


def _tensors(output: Any) -> Sequence[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
