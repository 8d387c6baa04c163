"""Discovery: one watched forward shows where a denoiser can be cut, and where it must not be."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from diffcache.calls import Call
from diffcache.compiled import uncompiled
from diffcache.schedulers.errors import TargetError
from diffcache.schedulers.steps import MODEL
from diffcache.swap import base_class, swapped
from diffcache.trace import Trace
from diffcache.units import (
    bare_parts_of_blocks,
    blocks_of,
    is_attention,
    is_sub_layer,
    layers_of_blocks,
    sub_layers_of_blocks,
    unit_members,
    watched,
)

SKIPPED_IS_USED = "what it computes inside is used after it (a skip connection): skipping it would lose that"
WRITES = "it writes to memory that was there before it (a K/V cache, an argument)"
REFILLS = "it changes which tensors a list or dict that it is given holds: skipping it would skip that"
NOT_EVOLVING = "it does not depend on the latents: nothing changes from tick to tick but the time"
NO_TENSOR = "it returns no tensor"


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


@dataclass(frozen=True)
class Site:
    """A place of a denoiser.

    Attributes:
        name: "model", "stack", a module's path, "first..last", or "depth 1".
        kind: "model", "stack", "range", "block", "self-attention", "cross-attention", "joint-attention",
            "feed-forward", "parallel" (attention and feed-forward side by side) or "depth".
        units: names of the units that it spans, in order.
        continues: for an output of its last unit, by place, the argument of which it is the continuation: learned
            from the next call of a unit of the same class.
        streams: the tensors that its last unit returns, by shape.
        parameters: number of parameters that it spans.
        share: of the forward's floating-point operations.
        reason: why it cannot be cached; None where it can.
    """

    name: str
    kind: str
    units: tuple[str, ...]
    streams: tuple[tuple[int, ...], ...]
    parameters: int
    share: float
    reason: str | None = None
    continues: Mapping[int, str] = field(default_factory=dict)


class SiteTable:
    """The sites of a denoiser, in the order in which the forward reaches them; printable."""

    def __init__(self, denoiser: str, sites: list[Site]) -> None:
        self.denoiser = denoiser
        self.sites = sites

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def __getitem__(self, name: str) -> Site:
        return next(site for site in self.sites if site.name == name)

    def of_kind(self, kind: str) -> list[Site]:
        return [site for site in self.sites if site.kind == kind]

    def __str__(self) -> str:
        rows = [("site", "kind", "streams", "parameters", "share", "")]
        for site in self.sites:
            streams = " ".join("x".join(map(str, shape)) for shape in site.streams)
            parameters, share = f"{site.parameters:,}", f"{site.share:.1%}"
            rows.append(
                (
                    site.name,
                    site.kind,
                    streams,
                    parameters,
                    share,
                    f"no: {site.reason}" if site.reason else "",
                )
            )
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]])
            for row in rows
        ]
        return "\n".join([self.denoiser, *(line.rstrip() for line in lines)])


class Recorder:
    """Watches units during one traced forward."""

    def __init__(self, units: dict[str, nn.Module], trace: Trace) -> None:
        self.watches = {id(module): path for path, module in units.items()}
        self.trace = trace
        self.calls: list[UnitCall] = []
        self.streams: dict[type, dict[int, str]] = {}
        self._open: list[UnitCall] = []

    def unit(self, module: nn.Module, forward: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        path, call = self.watches[id(module)], Call(module, args, kwargs)
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


def discover(denoiser: nn.Module, *args: Any, **kwargs: Any) -> SiteTable:
    """Runs one forward and tells where the denoiser can be cached.

    Args:
        denoiser: any `torch.nn.Module`; it is left as it was.
        *args, **kwargs: the arguments of an example call, as the denoising loop gives them.

    Returns:
        A table of sites (whole model, stack, blocks, sub-layers, UNet depths) with their cost, and a reason for each
        that cannot be cached.

    Raises:
        TargetError: not a module, or there is no floating tensor among the arguments.
    """
    if not isinstance(denoiser, nn.Module):
        raise TargetError(f"discover() takes a denoiser (torch.nn.Module), not a {type(denoiser).__name__}.")
    module = uncompiled(denoiser)
    call = Call(module, args, kwargs)
    if not call.latents:
        raise TargetError(
            "discover() needs an example call: pass the denoiser's arguments, with a floating latent."
        )
    bare = bare_parts_of_blocks(module)
    units = blocks_of(module) | layers_of_blocks(module) | sub_layers_of_blocks(module) | bare
    with torch.no_grad(), swapped(units.values(), unit_members), Trace(call.latents) as trace:
        recorder = Recorder(units, trace)
        with watched(recorder):
            output = module(*args, **kwargs)
        recorder.finish()
        trace.read_at_end(leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
    return Survey(type(denoiser).__name__, _parameters([module]), recorder.calls, trace, output, bare).table()


class Survey:
    """What one recorded forward shows: every place at which the denoiser can be cut.

    Args:
        denoiser: its class name.
        parameters: how many it has.
        calls: the calls of its units, in order.
        trace: of the forward.
        output: what it returned.
        bare: paths of the parts of blocks whose feed-forward is projections among them.
    """

    def __init__(
        self,
        denoiser: str,
        parameters: int,
        calls: list[UnitCall],
        trace: Trace,
        output: Any,
        bare: Collection[str],
    ) -> None:
        self.denoiser = denoiser
        self.calls = calls
        self.trace = trace
        self.total = max(trace.flops, 1)
        self.level = [call for call in calls if call.depth == 0]
        evolving = [call for call in self.level if in_list(call) and call.evolves]
        making = [call for call in evolving if call.made]
        self.stack = self._between(self.level, evolving[0], making[-1]) if making else []
        self.bare = bare
        self._places = {call.name: i for i, call in enumerate(calls)}
        shapes = tuple(tuple(leaf.shape) for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
        self._model = Site(MODEL, MODEL, (), shapes, parameters, 1.0)

    def table(self) -> SiteTable:
        """All sites but ranges."""
        sites = [self._model]
        if self.stack:
            sites.append(self._site("stack", "stack", self.stack))
        sites += self.depths()
        sites += self.bare_feed_forwards()
        for call in self.calls:
            if call.depth == 0 and in_list(call):
                sites.append(self._site(call.name, "block", [call]))
            elif call.depth > 0 and is_sub_layer(call.module):
                sites.append(self._site(call.name, kind_of(call), [call]))
        return SiteTable(self.denoiser, sites)

    def extent(self, site: Site) -> tuple[int, int]:
        """The operations begin < n <= end of the forward between which a site lies."""
        first, last = (self._places[unit] for unit in (site.units[0], site.units[-1]))
        return self.calls[first].begin, self.calls[last].end

    def range(self, first: str, last: str) -> Site | None:
        """The blocks, or parts of one block, from one to another; None where there are none of these names, or in another order."""
        for calls in (self.level, *(self._nested(block) for block in self.level)):
            names = [call.name for call in calls]
            if first in names and last in names and names.index(first) <= names.index(last):
                span = calls[names.index(first) : names.index(last) + 1]
                return self._site(f"{first}..{last}", "range" if calls is self.level else "parallel", span)
        return None

    def range_of_stack(self, first: int, last: int | None) -> Site | None:
        """The blocks between two positions in the stack, both included; None where it is shorter."""
        last = len(self.stack) - 1 if last is None else last
        if not first <= last < len(self.stack):
            return None
        return self._range(self.stack[first : last + 1])

    def depths(self) -> list[Site]:
        """A UNet's depths, outermost first.

        A layer that is given a long skip needs what lies before the skip's begin and after the layer; all that is
        between them, the deeper part, can be cached as one.
        """
        layers = [layer for unit in self.stack for layer in self._layers(unit)]
        if not layers:
            return []
        found: list[Site] = []
        inner = 0
        for last in range(len(layers) - 2, -1, -1):
            here = layers[last]
            if not self.trace.reads_old(here.begin, here.end, layers[last + 1].end):
                continue  # the next layer is given no skip
            spans = (layers[first : last + 1] for first in range(inner, last + 1))
            span = next((span for span in spans if _reason(span, self.trace) is None), None)
            if span is not None:
                found.append(self._site(f"depth {len(found) + 1}", "depth", span))
                inner = layers.index(span[0]) + 1
        return found

    def bare_feed_forwards(self) -> list[Site]:
        """Feed-forwards of bare projections: alone where they come after a block's attentions, else with them.

        Attention and feed-forward that run side by side are one site, up to the projection that joins them.
        """
        found = []
        for block in self.level:
            parts = [call for call in self._nested(block) if call.path in self.bare]
            work = [call for call in parts if works(call.module)]
            if work:
                after = self._after_attention(work)
                span = self._between(parts, (after or work)[0], work[-1])
                kind = "feed-forward" if after else "parallel"
                found.append(self._site(f"{span[0].name}..{span[-1].name}", kind, span))
        return found

    def _after_attention(self, work: list[UnitCall]) -> list[UnitCall]:
        """The projections of a feed-forward that is given what was made after the attentions; none where it is not."""
        last = max((i for i, call in enumerate(work) if is_attention(call.module)), default=len(work))
        projections = work[last + 1 :]
        if len(projections) < 2:
            return []
        begin, end = work[last].end, projections[0].begin
        newer = any(self.trace.writes(storage, begin, end) for _, storage, _ in projections[0].inputs)
        return projections if newer else []

    def _nested(self, unit: UnitCall) -> list[UnitCall]:
        return [
            call
            for call in self.calls
            if call.depth == 1 and unit.begin <= call.begin and call.end <= unit.end
        ]

    def _layers(self, unit: UnitCall) -> list[UnitCall]:
        """The layers that a block is made of, or the block itself."""
        return [call for call in self._nested(unit) if in_list(call)] or [unit]

    def _range(self, span: list[UnitCall]) -> Site:
        return self._site(f"{span[0].name}..{span[-1].name}", "range", span)

    def _site(self, name: str, kind: str, span: list[UnitCall]) -> Site:
        return Site(
            name=name,
            kind=kind,
            units=tuple(call.name for call in span),
            streams=tuple(output[1] for output in span[-1].outputs if output is not None),
            parameters=_parameters([call.module for call in span]),
            share=sum(call.flops for call in span) / self.total,
            reason=_reason(span, self.trace),
            continues=span[-1].continues,
        )

    @staticmethod
    def _between(calls: list[UnitCall], first: UnitCall, last: UnitCall) -> list[UnitCall]:
        return calls[calls.index(first) : calls.index(last) + 1]


def _reason(span: list[UnitCall], trace: Trace) -> str | None:
    """Why a span of units must not be skipped, or None."""
    allowed = {output[0] for output in span[-1].outputs if output is not None}
    begin, end = span[0].begin, span[-1].end
    if not allowed:
        return NO_TENSOR
    if trace.writes_outside(begin, end):
        return WRITES
    if any(call.refills for call in span):
        return REFILLS
    shared = allowed & {output[0] for call in span[:-1] for output in call.made}
    if trace.leaks([(call.begin, call.end) for call in span], allowed) or trace.reads(shared, end):
        return (
            SKIPPED_IS_USED  # shared: the last one makes its own tensor good, not another of the same memory
        )
    return None if any(call.evolves for call in span) else NOT_EVOLVING


def kind_of(call: UnitCall) -> str:
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


def is_member(path: str) -> bool:
    """Whether the module at `path` is a member of a list."""
    return path.rsplit(".", 1)[-1].isdigit()


def works(module: nn.Module) -> bool:
    """Whether a block's part is an attention or a projection, and not a norm or an activation between them."""
    return is_attention(module) or isinstance(module, nn.Linear)


def _parameters(modules: list[nn.Module]) -> int:
    unique = {id(p): p.numel() for module in modules for p in module.parameters()}
    return sum(unique.values())
