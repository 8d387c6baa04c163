"""Blocks that are not traced, because two blocks before them, of the same form and called in the same form, did the same.

Tracing costs several times what an operation costs, and most of a denoiser is one block many times over. Of blocks of one
form, the first two are traced. Where both did the same, the others run untraced, and what the first did is noted for them
on their own memory. What they are given and return, inside too, is compared with it.

A block is only followed if it is closed: it touches nothing but its arguments, its own parameters and buffers, and memory
that it makes and does not keep. And the forward must not have looked at a tensor's content in it.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from diffcache.discovery.likeness import Opaque, form_of_block, form_of_call, memory_of_block
from diffcache.discovery.repeats import Pairs, RepeatingTrace, Stretch, Unlike
from diffcache.discovery.storage_trace import Storage
from diffcache.discovery.unit_recorder import UnitCall, UnitRecorder
from diffcache.discovery.units import is_list_member
from diffcache.host.call import Call


@dataclass
class _Model:
    """A traced block, and what it did.

    Attributes:
        calls: of the block, and of the units inside it.
        memory: of its parameters and buffers.
        did: its operations.
        is_sure: a second block did the same.
    """

    calls: Sequence[UnitCall]
    memory: list[Storage]
    did: Stretch
    is_sure: bool = False

    @property
    def is_closed(self) -> bool:
        """It can be followed (see above), and holds no layers in lists, as a UNet's blocks do."""
        block, *inside = self.calls
        own = {storage for _, storage, _ in block.inputs} | self.did.made | set(self.memory)
        returned = {output[0] for output in block.outputs if output is not None}
        layered = any(unit.depth == 1 and unit.is_in_list for unit in inside)
        return self.did.touched <= own and self.did.lasting <= returned and not (self.did.told or layered)


@dataclass
class _Follower:
    """A block's call whose operations are not traced.

    Attributes:
        model: what it does too.
        shift: by which its operations are later than the model's.
        pairs: whose memory the model's stands for.
        block: of it; None before it begins.
    """

    model: _Model
    shift: int
    pairs: Pairs
    block: UnitCall | None = None
    _left: Iterator[UnitCall] = field(init=False)

    def __post_init__(self) -> None:
        self._left = iter(self.model.calls)

    def begins(self, unit: UnitCall) -> UnitCall:
        """Notes when a unit begins; returns the model's unit for which it stands.

        Raises:
            Unlike: the model had no such call here.
        """
        twin = next(self._left, None)
        self.block = self.block or unit
        if twin is None or _call_form(twin, self.model.calls[0]) != _call_form(unit, self.block):
            raise Unlike
        self.pairs.put((storage for _, storage, _ in twin.inputs), (storage for _, storage, _ in unit.inputs))
        unit.begin, unit.evolves = twin.begin + self.shift, twin.evolves
        return twin

    def returned(self, unit: UnitCall, twin: UnitCall) -> None:
        """Notes what a unit has done.

        Raises:
            Unlike: the model's returned something else.
        """
        if _return_form(twin) != _return_form(unit):
            raise Unlike
        self.pairs.put(*(_storages(call.outputs) for call in (twin, unit)))
        unit.end, unit.flops = twin.end + self.shift, twin.flops
        unit.made = [(self.pairs.to[storage], shape) for storage, shape in twin.made]

    def is_over(self) -> None:
        """The block has returned.

        Raises:
            Unlike: the model called more units.
        """
        if next(self._left, None) is not None:
            raise Unlike


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
        self._models: dict[Hashable, _Model | None] = {}  # None: these are not followed
        self._follower: _Follower | None = None

    def unit(self, module: nn.Module, forward: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Runs one call of a unit, and records it.

        Raises:
            Unlike: a block that is not traced does otherwise than those before it. Everything has to be traced.
        """
        if self._follower is not None:
            return self._followed(self._follower, module, forward, args, kwargs)
        form = None if self._open or self._traces_all else self._form(module, args, kwargs)
        if form is None:
            return super().unit(module, forward, args, kwargs)
        model = self._models.get(form)
        if model is not None and model.is_sure:
            return self._follow(model, module, forward, args, kwargs)
        point, first = self._trace.point(), len(self.calls)
        output = super().unit(module, forward, args, kwargs)
        self._learn(form, _Model(self.calls[first:], self._memory(module), self._trace.since(point)))
        return output

    def _form(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Hashable:
        """The form of a block and its call; None for what is no block or cannot be compared."""
        if not is_list_member(self.watches[id(module)]) or not self._trace.is_innermost:
            return None
        try:
            return form_of_block(module), form_of_call(Call.of(module, args, kwargs), self.trace)
        except Opaque:
            return None

    def _memory(self, module: nn.Module) -> list[Storage]:
        """Of a block's parameters and buffers. They live as long as the forward, so the trace need not look after them."""
        return [tensor.untyped_storage()._cdata for tensor in memory_of_block(module)]

    def _learn(self, form: Hashable, traced: _Model) -> None:
        """Compares a traced block with the first one of its form."""
        if form not in self._models:
            self._models[form] = traced if traced.is_closed else None
            return
        model = self._models[form]
        if model is None:
            return
        model.is_sure = self._do_the_same(model, traced)
        if not model.is_sure:
            self._models[form] = None

    def _do_the_same(self, model: _Model, other: _Model) -> bool:
        """Whether two traced blocks of one form did the same."""
        pairs = Pairs()
        try:
            pairs.put(model.memory, other.memory)
            follower = _Follower(model, other.did.begin - model.did.begin, pairs)
            for call in other.calls:
                at = call.begin, call.end, call.evolves, call.flops, call.made
                twin = follower.begins(call)
                follower.returned(call, twin)
                if at != (call.begin, call.end, call.evolves, call.flops, call.made):
                    return False
            follower.is_over()
        except Unlike:
            return False
        return self._trace.are_alike(model.did, other.did, pairs)

    def _follow(self, model: _Model, module: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        """Runs a block without tracing it."""
        pairs = Pairs()
        pairs.put(model.memory, self._memory(module))
        self._follower = _Follower(model, self.trace.now - model.did.begin, pairs)
        self.followed += 1
        try:
            with self._trace.paused():
                return self._followed(self._follower, module, forward, args, kwargs)
        finally:
            self._follower = None

    def _followed(
        self, follower: _Follower, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Runs a block that is not traced, or a unit inside it, and records what its model did."""
        unit, call = self._opened(module, args, kwargs)
        twin = follower.begins(unit)
        self.begins(unit, call)
        self.calls.append(unit)
        self._open.append(unit)
        try:
            output = forward(*args, **kwargs)
        finally:
            self._open.pop()
        unit.refills = call.refilled()
        self._record_outputs(unit, call, output)
        follower.returned(unit, twin)
        if not self._open:
            follower.is_over()
            self._trace.repeat(follower.model.did, follower.pairs)
        self.returned(unit, call, output)
        return output


def _call_form(unit: UnitCall, block: UnitCall) -> Hashable:
    """What must be alike when a unit inside a block is called."""
    inputs = tuple((path, shape) for path, _, shape in unit.inputs)
    return unit.path.removeprefix(block.path), unit.depth, inputs


def _return_form(unit: UnitCall) -> Hashable:
    """What must be alike when it has returned."""
    return unit.refills, tuple(None if output is None else output[1] for output in unit.outputs)


def _storages(outputs: Sequence[tuple[Storage, Any] | None]) -> list[Storage]:
    return [output[0] for output in outputs if output is not None]
