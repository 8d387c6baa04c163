"""The calls of units in one traced forward: what each was given, made and returned, and what it continues."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from diffcache.discovery.storage_trace import Trace
from diffcache.discovery.units import is_attention, is_member
from diffcache.hooks.class_swap import base_class
from diffcache.host.call import Call


@dataclass
class UnitCall:
    """One call of a unit in the watched forward.

    Attributes:
        path: of the module.
        nth: which of its calls in this forward (0 unless it is used twice).
        module: the unit.
        begin, end: the operations n it ran, begin < n <= end.
        flops: of these.
        depth: how many other units' calls it lies in.
        evolves: something that it is given follows from the latents.
        refills: a list or dict among its arguments holds other tensors after it than before.
        inputs: (path of the argument, storage, shape) of each tensor that it is given.
        outputs: (storage, shape) of each tensor that it returns, None for what is none.
        made: those of them that it does not hand on as they were given.
        continues: see `Site`.
    """

    path: str
    nth: int
    module: nn.Module
    begin: int
    depth: int
    evolves: bool
    inputs: list[tuple[str, int, tuple[int, ...]]]
    end: int = 0
    flops: int = 0
    refills: bool = False
    outputs: list[tuple[int, tuple[int, ...]] | None] = field(default_factory=list)
    made: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    continues: Mapping[int, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.path if self.nth == 0 else f"{self.path}#{self.nth}"


class Recorder:
    """Watches units during one traced forward."""

    def __init__(self, units: dict[str, nn.Module], trace: Trace) -> None:
        self.watches = {id(module): path for path, module in units.items()}
        self.trace = trace
        self.calls: list[UnitCall] = []
        self.streams: dict[type, dict[int, str]] = {}
        self._open: list[UnitCall] = []

    def unit(self, module: nn.Module, forward: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        path, call = self.watches[id(module)], Call.of(module, args, kwargs)
        unit = UnitCall(
            path=path,
            nth=sum(other.path == path for other in self.calls),
            module=module,
            begin=self.trace.now,
            depth=len(self._open),
            evolves=self.trace.evolves(call.tensors.values()),
            inputs=[(name, self.trace.storage(t), tuple(t.shape)) for name, t in call.tensors.items()],
        )
        flops = self.trace.flops
        self._follow(unit)
        self.calls.append(unit)
        self._open.append(unit)
        try:
            output = forward(*args, **kwargs)
        finally:
            self._open.pop()
        unit.refills = call.refilled()
        self.trace.returned(call.tensors.values(), (t for t in tree_leaves(output) if isinstance(t, Tensor)))
        unit.end, unit.flops = self.trace.now, self.trace.flops - flops
        given = {id(tensor) for tensor in call.tensors.values()}
        for leaf in tree_leaves(output):
            told = (self.trace.storage(leaf), tuple(leaf.shape)) if isinstance(leaf, Tensor) else None
            unit.outputs.append(told)
            if told is not None and (
                id(leaf) not in given or self.trace.writes(told[0], unit.begin, unit.end)
            ):
                unit.made.append(told)
        return output

    def _follow(self, unit: UnitCall) -> None:
        """An output of the unit before that comes in here again as it was tells which stream it is, for all its class."""
        before = next((call for call in reversed(self.calls) if call.depth == unit.depth), None)
        if before is None or type(before.module) is not type(unit.module):
            return
        places = {output: place for place, output in enumerate(before.outputs) if output is not None}
        found = {
            places[storage, shape]: path for path, storage, shape in unit.inputs if (storage, shape) in places
        }
        self.streams.setdefault(base_class(type(unit.module)), {}).update(found)

    def finish(self) -> None:
        """Gives every call what was learned of its class."""
        for call in self.calls:
            call.continues = self.streams.get(base_class(type(call.module)), {})


def kind_of(call: UnitCall) -> str:
    """What a sub-layer is: a `Site.kind`."""
    if not is_attention(call.module):
        return "feed-forward"
    if sum(output is not None for output in call.outputs) > 1:
        return "joint-attention"
    storages = {name: storage for name, storage, _ in call.inputs}
    elsewhere = "key" in storages and storages["key"] != storages.get("query")
    context = any(len(shape) > 2 for name, _, shape in call.inputs if "encoder" in name or "context" in name)
    return "cross-attention" if context or elsewhere else "self-attention"


def in_list(call: UnitCall) -> bool:
    """Whether the unit is a member of a block list."""
    return is_member(call.path)
