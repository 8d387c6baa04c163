"""Blocks that are not traced, because a block before them, of the same form and called in the same form, has been.

Tracing costs several times what an operation costs, and most of a denoiser is one block many times over. Of blocks of one
form the first is traced. The others run untraced, and what the first did is noted for them: for the block on its own memory,
for the units inside it without any (`UnitCall.twin` has it). Blocks of one form run the same code on the same plain values,
so they do the same, unless that code goes by something outside them. What they and the units inside them return is compared
with what the first one's returned, and which units they call.

A block is only followed if it is closed: it touches nothing but its arguments, its own parameters and buffers, and memory
that it makes and does not keep. None of its own memory may evolve, and the forward must not have looked at a tensor's
content in it.

Which arguments evolve may be other ones than in the first block. What evolves then is found by going through its operations
again. It must be the same units inside that are given something that evolves.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from diffcache.discovery.likeness import BlockForm, Opaque, form_of_call, memory_of_block
from diffcache.discovery.repeats import Pairs, RepeatingTrace, Stretch, Unlike
from diffcache.discovery.storage_trace import Storage
from diffcache.discovery.unit_recorder import UnitCall, UnitRecorder
from diffcache.host.call import Call
from diffcache.host.leaves import leaves_of


@dataclass
class _Model:
    """A traced block, and what it did.

    Attributes:
        form: what the block is made of.
        calls: of the block, and of the units inside it.
        memory: of its parameters and buffers.
        did: its operations.
        evolved: which of its arguments evolved.
        is_followed: others are not traced.
    """

    form: BlockForm
    calls: Sequence[UnitCall]
    memory: list[Storage]
    did: Stretch
    evolved: tuple[bool, ...]
    is_followed: bool = field(init=False)
    _evolving: dict[tuple[bool, ...], set[Storage] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        block, *inside = self.calls
        own = {storage for _, storage, _ in block.inputs} | self.did.made | set(self.memory)
        returned = {output[0] for output in block.outputs if output is not None}
        is_closed = self.did.touched <= own and self.did.lasting <= returned and not self.did.told
        evolves = not self.did.evolving.isdisjoint(self.memory)
        layered = any(unit.depth == 1 and unit.is_in_list for unit in inside)  # as a UNet's blocks
        self.is_followed = is_closed and not layered and not evolves

    @property
    def writes_own_memory(self) -> bool:
        """It writes to its parameters or buffers."""
        return not self.did.writes.keys().isdisjoint(self.memory)

    def stands_for(self, block: nn.Module, evolved: tuple[bool, ...]) -> bool:
        """Whether a block does the same if these of its arguments evolve, called in the form in which this one was."""
        return self.evolving(evolved) is not None and self.form.fits(block)

    def evolving(self, evolved: tuple[bool, ...]) -> set[Storage] | None:
        """The part of the memory it touched that would have evolved in the end if these of its arguments had.

        Returns:
            None where other units inside it would have been given what evolves, or its operations do not tell.
        """
        if evolved == self.evolved:
            return self.did.evolving
        if evolved not in self._evolving:
            self._evolving[evolved] = self._followed_through(evolved)
        return self._evolving[evolved]

    def _followed_through(self, evolved: tuple[bool, ...]) -> set[Storage] | None:
        if self.writes_own_memory or not self.did.is_seen:
            return None
        block, *inside = self.calls
        found = {storage for (_, storage, _), does in zip(block.inputs, evolved, strict=True) if does}
        todo = deque(inside)
        for n, reads, _, following in (*self.did.operations, (self.did.end + 1, [], [], [])):
            while todo and todo[0].begin < n:
                unit = todo.popleft()
                if unit.evolves == found.isdisjoint(storage for _, storage, _ in unit.inputs):
                    return None
            if not found.isdisjoint(reads):
                found.update(following)
        return found


@dataclass
class _Follower:
    """A block's call whose operations are not traced.

    Attributes:
        model: what it does too.
        block: its record.
        shift: by which its operations are later than the model's.
        pairs: whose memory the model's stands for.
    """

    model: _Model
    block: UnitCall
    shift: int
    pairs: Pairs
    _left: Iterator[UnitCall] = field(init=False)

    def __post_init__(self) -> None:
        first, *inside = self.model.calls
        self._left = iter(inside)
        self.pairs.put(_given(first), _given(self.block))

    def next(self, module: nn.Module, path: str, nth: int, depth: int) -> UnitCall:
        """The record of a unit inside the block that is called now.

        Raises:
            Unlike: the model had no such call here.
        """
        twin, first = next(self._left, None), self.model.calls[0]
        if (
            twin is None
            or twin.depth != depth
            or twin.path[len(first.path) :] != path[len(self.block.path) :]
        ):
            raise Unlike
        return twin.repeated(module, path, nth, self.shift)

    def is_over(self) -> None:
        """The block has returned, and its record is complete.

        Raises:
            Unlike: the model called more units, or returned something else.
        """
        first, block = self.model.calls[0], self.block
        if next(self._left, None) is not None or _return_form(first) != _return_form(block):
            raise Unlike
        self.pairs.put(_returned(first), _returned(block))
        block.end, block.flops = first.end + self.shift, first.flops
        block.made = [(self.pairs.to[storage], shape) for storage, shape in first.made]


class FollowingRecorder(UnitRecorder):
    """Records the calls of units, and does not trace blocks that do what others did.

    Args:
        units: the modules to watch, by path.
        latents: the tensors that the denoiser denoises.
        traces_all: every block is traced.

    Attributes:
        followed: how many blocks' calls were not traced.
    """

    def __init__(
        self, units: Mapping[str, nn.Module], latents: Iterable[Tensor], *, traces_all: bool
    ) -> None:
        super().__init__(units, latents)
        self.followed = 0
        self.trace = self._trace = RepeatingTrace(latents)
        self._traces_all = traces_all
        self._models: dict[Hashable, list[_Model]] = {}  # by the form of their calls
        self._follower: _Follower | None = None

    def unit(self, module: nn.Module, forward: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Runs one call of a unit, and records it.

        Raises:
            Unlike: a block that is not traced does otherwise than those before it. Everything has to be traced.
        """
        if self._follower is not None:
            return self._unit_inside(self._follower, module, forward, args, kwargs)
        call = Call.of(module, args, kwargs)
        unit = self._opened(module, call)
        alike = None if self._open or self._traces_all else self._called_alike(unit, call)
        if alike is None:
            return self._recorded(unit, forward, call)
        evolved = self.trace.each_evolves(_given(unit))
        model = next((each for each in alike if each.stands_for(module, evolved)), None)
        evolving = None if model is None else model.evolving(evolved)
        if model is not None and model.is_followed and evolving is not None:
            return self._follow(model, unit, forward, call, evolving)
        form = _form(module) if model is None else None
        if form is None:
            return self._recorded(unit, forward, call)
        point, first = self._trace.point(), len(self.calls)
        output = self._recorded(unit, forward, call)
        did = self._trace.since(point)
        alike.append(_Model(form, self.calls[first:], memory_of_block(module), did, evolved))
        return output

    def _called_alike(self, unit: UnitCall, call: Call) -> list[_Model] | None:
        """The traced blocks whose calls had the same form; None for what is no block, or cannot be compared."""
        if not unit.is_in_list or not self._trace.is_innermost:
            return None
        try:
            form = form_of_call(call, _given(unit))
        except Opaque:
            return None
        return self._models.setdefault(form, [])

    def _follow(
        self, model: _Model, block: UnitCall, forward: Any, call: Call, evolving: set[Storage]
    ) -> Any:
        """Runs a block without tracing it, and records what its model did.

        Args:
            evolving: see `_Model.evolving`.
        """
        self._follower = _Follower(model, block, self.trace.now - model.did.begin, Pairs())
        if model.writes_own_memory:
            self._follower.pairs.put(model.memory, memory_of_block(block.module))
        block.twin = model.calls[0]
        self.begins(block, call)
        self.calls.append(block)
        self._open.append(block)
        self.followed += 1
        try:
            with self._trace.paused():
                output = forward(*call.args, **call.kwargs)
                block.refills, block.outputs = call.refilled(), self._forms_of(output)
                self._follower.is_over()
                self._trace.repeat(model.did, self._follower.pairs, evolving)
                self.returned(block, call, output)
        finally:
            self._open.pop()
            self._follower = None
        return output

    def _unit_inside(
        self,
        follower: _Follower,
        module: nn.Module,
        forward: Callable[..., Any],
        args: Any,
        kwargs: dict[str, Any],
    ) -> Any:
        """Runs a unit inside a block that is not traced."""
        path = self.watches[id(module)]
        unit = follower.next(module, path, self._counted(path), len(self._open))
        assert unit.twin is not None
        self._newest[unit.depth] = unit
        self.calls.append(unit)
        self._open.append(unit)
        try:
            output = forward(*args, **kwargs)
        finally:
            self._open.pop()
        if not _returns_alike(output, unit.twin):
            raise Unlike
        self.repeated(unit, unit.twin, args, kwargs, output)
        return output

    def repeated(
        self, unit: UnitCall, twin: UnitCall, args: Any, kwargs: dict[str, Any], output: Any
    ) -> None:
        """A unit inside a block that is not traced has run as its twin did."""


def _form(block: nn.Module) -> BlockForm | None:
    """None where it cannot be compared."""
    try:
        return BlockForm(block)
    except Opaque:
        return None


def _given(unit: UnitCall) -> list[Storage]:
    return [storage for _, storage, _ in unit.inputs]


def _returned(unit: UnitCall) -> list[Storage]:
    return [output[0] for output in unit.outputs if output is not None]


def _return_form(unit: UnitCall) -> Hashable:
    return unit.refills, tuple(output and output[1] for output in unit.outputs)


def _returns_alike(output: Any, twin: UnitCall) -> bool:
    """Whether an output has as many leaves as what a unit returned, tensors of the same shapes and other ones."""
    leaves, known = leaves_of(output), twin.outputs
    if len(leaves) != len(known):
        return False
    for leaf, form in zip(leaves, known, strict=True):
        if (leaf.shape if isinstance(leaf, Tensor) else None) != (form and form[1]):
            return False
    return True
