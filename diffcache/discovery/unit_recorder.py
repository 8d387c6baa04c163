"""Records the calls of units in one traced forward: what each was given, what it returned, and what it made of it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from diffcache.discovery.storage_trace import Storage, Trace
from diffcache.discovery.units import is_attention, is_list_member
from diffcache.hooks.class_swap import base_class
from diffcache.hooks.watcher import watched
from diffcache.host.call import Call
from diffcache.host.compiled import is_compiled
from diffcache.host.leaves import leaves_of, tensors_of

Shape = tuple[int, ...]

NONE: Mapping[int, str] = {}
"""What a unit continues whose class has not been called twice in a row."""


def call_name(path: str, nth: int) -> str:
    """The name of a unit's call: its path, with "#1" for the module's second call in a forward, and so on."""
    return path if nth == 0 else f"{path}#{nth}"


class CallNames:
    """Names the calls of units in one forward, in order."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def next(self, path: str) -> str:
        """The name of the next call of the unit at `path`."""
        nth = self._counts.get(path, 0)
        self._counts[path] = nth + 1
        return call_name(path, nth) if nth else path


@dataclass(slots=True, eq=False)
class UnitCall:
    """One call of a unit.

    Attributes:
        name: see `call_name`.
        path: path of the module.
        nth: index of this call among the module's calls in this forward (0 unless the module is used twice).
        module: the unit.
        begin, end: the call ran the operations n with begin < n <= end.
        depth: the number of other units' calls that this call lies in.
        evolves: some argument is computed from the latents.
        inputs: (path of the argument, storage, shape) of each tensor argument.
        flops: floating-point operations of the call.
        refills: a list or dict among the arguments holds other tensors after the call than before.
        outputs: (storage, shape) of each leaf of the output; None for a leaf that is no tensor.
        made: the entries of `outputs` that the unit wrote, not returned as they were given.
        continues: see `Site`.
        twin: the call that did the same in an equal block, if this block was not traced (see `twins`). A unit inside such a
            block has no `inputs`, `outputs` and `made`: its twin has them.
    """

    path: str
    nth: int
    module: nn.Module
    begin: int
    depth: int
    evolves: bool
    inputs: Sequence[tuple[str, Storage, Shape]] = ()
    end: int = 0
    flops: int = 0
    refills: bool = False
    outputs: Sequence[tuple[Storage, Shape] | None] = ()
    made: Sequence[tuple[Storage, Shape]] = ()
    continues: Mapping[int, str] = field(default_factory=lambda: NONE)
    twin: "UnitCall | None" = None
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = call_name(self.path, self.nth) if self.nth else self.path

    def repeated(self, module: nn.Module, path: str, nth: int, shift: int) -> "UnitCall":
        """The call of a unit that does the same, so many operations later."""
        begin, end = self.begin + shift, self.end + shift
        return UnitCall(
            path, nth, module, begin, self.depth, self.evolves, (), end, self.flops, self.refills, twin=self
        )

    @property
    def is_in_list(self) -> bool:
        """The unit is a member of a block list."""
        return is_list_member(self.path)

    @property
    def kind(self) -> str:
        """The kind of the sub-layer that the unit is, as in `Site.kind`."""
        if self.depth > 0 and self.twin is not None:
            return self.twin.kind
        if not is_attention(self.module):
            return "feed-forward"
        if sum(output is not None for output in self.outputs) > 1:
            return "joint-attention"
        storages = {name: storage for name, storage, _ in self.inputs}
        other_keys = "key" in storages and storages["key"] != storages.get("query")
        has_context = any(
            len(shape) > 2 for name, _, shape in self.inputs if "encoder" in name or "context" in name
        )
        return "cross-attention" if has_context or other_keys else "self-attention"


class UnitRecorder:
    """Records the calls of units during one forward. It watches the units, whose classes must be swapped.

    Args:
        units: the modules to watch, by path.
        latents: the tensors that the denoiser denoises.

    Attributes:
        watches: paths of the units by the modules' identity.
        trace: of the forward.
        calls: the units' calls, in order.
        streams: by class of unit, which argument each output continues (see `Site.continues`).
    """

    def __init__(self, units: Mapping[str, nn.Module], latents: Iterable[Tensor]) -> None:
        self.watches = {id(module): path for path, module in units.items()}
        self.trace = Trace(latents)
        self.calls: list[UnitCall] = []
        self.streams: dict[type, dict[int, str]] = {}
        self._open: list[UnitCall] = []
        self._newest: dict[int, UnitCall] = {}  # by depth
        self._counts: dict[str, int] = {}

    def record(self, forward: Callable[[], Any]) -> Any:
        """Runs `forward`, and returns its output."""
        with self.trace, watched(self):
            output = forward()
        self.trace.forward_returned(tensors_of(output))
        for call in self.calls:
            call.continues = self.streams.get(base_class(type(call.module)), NONE)
        return output

    def unit(self, module: nn.Module, forward: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Runs one call of a unit, and records it."""
        call = Call.of(module, args, kwargs)
        return self._recorded(self._opened(module, call), forward, call)

    def _recorded(self, unit: UnitCall, forward: Any, call: Call) -> Any:
        """Runs a call whose record has been opened."""
        with self.trace.untraced():
            self.begins(unit, call)
            flops = self.trace.flops
            self.calls.append(unit)
        given = [*call.tensors.values()]
        self._open.append(unit)
        try:
            with self.trace.compiled(given) if is_compiled(unit.module) else nullcontext():
                output = forward(*call.args, **call.kwargs)
        finally:
            self._open.pop()
        with self.trace.untraced():
            unit.refills = call.refilled()
            self.trace.unit_returned(given, tensors_of(output))
            unit.end, unit.flops = self.trace.now, self.trace.flops - flops
            unit.outputs = self._forms_of(output)
            unit.made = self._made(unit, call, output)
            self.returned(unit, call, output)
        return output

    def _opened(self, module: nn.Module, call: Call) -> UnitCall:
        path = self.watches[id(module)]
        inputs = [(name, self.trace.storage(t), t.shape) for name, t in call.tensors.items()]
        unit = UnitCall(
            path=path,
            nth=self._counted(path),
            module=module,
            begin=self.trace.now,
            depth=len(self._open),
            evolves=any(self.trace.each_evolves(storage for _, storage, _ in inputs)),
            inputs=inputs,
        )
        self._follow_streams(unit)
        return unit

    def _counted(self, path: str) -> int:
        """The number of calls of this module before this one."""
        nth = self._counts.get(path, 0)
        self._counts[path] = nth + 1
        return nth

    def begins(self, unit: UnitCall, call: Call) -> None:
        """A unit is about to run. It is the newest of `calls` from then on."""

    def returned(self, unit: UnitCall, call: Call, output: Any) -> None:
        """A unit has run, and its record is complete."""

    def _forms_of(self, output: Any) -> list[tuple[Storage, Shape] | None]:
        """`UnitCall.outputs`."""
        return [
            (self.trace.storage(leaf), leaf.shape) if isinstance(leaf, Tensor) else None
            for leaf in leaves_of(output)
        ]

    def _made(self, unit: UnitCall, call: Call, output: Any) -> list[tuple[Storage, Shape]]:
        """`UnitCall.made`, of a unit whose operations have been traced."""
        given = {id(tensor) for tensor in call.tensors.values()}
        return [
            form
            for leaf, form in zip(leaves_of(output), unit.outputs, strict=True)
            if form is not None
            and (id(leaf) not in given or self.trace.writes(form[0], unit.begin, unit.end))
        ]

    def _follow_streams(self, unit: UnitCall) -> None:
        """Compares a unit's arguments with the outputs of the unit before it, if both are of one class.

        An output that is an argument here, unchanged, continues that argument's stream, in all units of the class.
        """
        before, self._newest[unit.depth] = self._newest.get(unit.depth), unit
        if before is None or type(before.module) is not type(unit.module):
            return
        indices = {output: index for index, output in enumerate(before.outputs) if output is not None}
        found = {
            indices[storage, shape]: path
            for path, storage, shape in unit.inputs
            if (storage, shape) in indices
        }
        self.streams.setdefault(base_class(type(unit.module)), {}).update(found)
