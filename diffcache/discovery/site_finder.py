"""Finds the sites of a denoiser from the record of one forward, and the reasons why some must not be cached."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from diffcache.discovery.repeats import Unlike
from diffcache.discovery.sites import Site, SiteTable
from diffcache.discovery.storage_trace import Storage, Trace
from diffcache.discovery.unit_recorder import UnitCall
from diffcache.discovery.units import is_attention, is_attention_or_projection, is_sub_layer
from diffcache.host.structure import modules_inside
from diffcache.schedulers.steps import MODEL

SKIPPED_IS_USED = "what it computes inside is used after it (a skip connection): skipping it would lose that"
WRITES = "it writes to memory that was there before it (a K/V cache, an argument)"
REFILLS = "it changes which tensors a list or dict that it is given holds: skipping it would skip that"
NOT_EVOLVING = "it does not depend on the latents: nothing changes from tick to tick but the time"
NO_TENSOR = "it returns no tensor"


class SiteFinder:
    """Finds every site of a denoiser from one recorded forward.

    Args:
        denoiser: the denoiser.
        calls: the calls of its units, in order.
        trace: of the forward.
        output: what the forward returned.
        bare: paths of the parts of blocks that have a bare feed-forward (see `bare_parts_of_blocks`).

    Attributes:
        name: the denoiser's class name.
        stack: calls of the top-level units from the first block that evolves to the last one that makes something.
    """

    def __init__(
        self, denoiser: nn.Module, calls: list[UnitCall], trace: Trace, output: Any, bare: Collection[str]
    ) -> None:
        self.denoiser = denoiser
        self.name = type(denoiser).__name__
        self.calls = calls
        self.trace = trace
        self._output_shapes = tuple(
            tuple(leaf.shape) for leaf in tree_leaves(output) if isinstance(leaf, Tensor)
        )
        self.bare = bare
        self._total_flops = max(trace.flops, 1)
        self._indices = {call.name: i for i, call in enumerate(calls)}
        self._parts_of = _parts_by_block(calls)
        self._top_level = [call for call in calls if call.depth == 0]
        self._sites: dict[tuple[str, ...], Site] = {}  # inside traced blocks that others do the same as
        evolving = [call for call in self._top_level if call.is_in_list and call.evolves]
        making = [call for call in evolving if call.made]
        self.stack = _between(self._top_level, evolving[0], making[-1]) if making else []

    @cached_property
    def table(self) -> SiteTable:
        """All sites except ranges of blocks."""
        sites = [Site(MODEL, MODEL, (), self._output_shapes, None, 1.0)]
        if self.stack:
            sites.append(self._site("stack", "stack", self.stack))
        sites += self._depths()
        sites += self.bare_feed_forwards()
        sites += (self._site(call.name, kind, [call]) for kind, call in self._single)
        return SiteTable(self.name, [self._counted(site) for site in sites])

    def of(self, kinds: Collection[str], name: str) -> list[Site]:
        """The part of the table with one of these kinds or this name. It is found without the rest."""
        sites: list[Site] = []
        if self.stack and (name == "stack" or "stack" in kinds):
            sites.append(self._site("stack", "stack", self.stack))
        if name.startswith("depth "):
            sites += (site for site in self._depths() if site.name == name)
        if not {"parallel", "feed-forward"}.isdisjoint(kinds):
            sites += (site for site in self.bare_feed_forwards() if site.kind in kinds)
        single = (each for each in self._single if each[0] in kinds or each[1].name == name)
        return [*sites, *(self._site(call.name, kind, [call]) for kind, call in single)]

    @cached_property
    def _single(self) -> list[tuple[str, UnitCall]]:
        """The blocks and sub-layers, with the kinds of sites that they are."""
        found, kinds = list[tuple[str, UnitCall]](), dict[UnitCall, str]()
        for call in self.calls:
            if call.depth == 0:
                kind = "block" if call.is_in_list else ""
            else:
                twin = call.twin or call
                if twin not in kinds:
                    kinds[twin] = twin.kind if is_sub_layer(twin.module) else ""
                kind = kinds[twin]
            if kind:
                found.append((kind, call))
        return found

    def has_called(self, path: str) -> bool:
        """Whether the forward has called a module, or a unit that it lies in."""
        return any(path == call.path or path.startswith(f"{call.path}.") for call in self._top_level)

    def extent(self, site: Site) -> tuple[int, int]:
        """A site inside the denoiser runs the operations n with begin < n <= end; returns (begin, end)."""
        first, last = (self._indices[unit] for unit in (site.units[0], site.units[-1]))
        return self.calls[first].begin, self.calls[last].end

    def range(self, first: str, last: str) -> Site | None:
        """The site from one block to another, or from one part of a block to another; both are included.

        Returns:
            None where there are no units of these names at one level, or they are called in the other order.
        """
        for calls in (self._top_level, *(self._parts(block) for block in self._top_level)):
            names = [call.name for call in calls]
            if first in names and last in names and names.index(first) <= names.index(last):
                span = calls[names.index(first) : names.index(last) + 1]
                kind = "range" if calls is self._top_level else "parallel"
                return self._site(f"{first}..{last}", kind, span)
        return None

    def range_of_stack(self, first: int, last: int | None) -> Site | None:
        """The site from one index of the stack to another, both included; `last` None: to its end.

        Returns:
            None where the stack is shorter.
        """
        last = len(self.stack) - 1 if last is None else last
        if not first <= last < len(self.stack):
            return None
        span = self.stack[first : last + 1]
        return self._site(f"{span[0].name}..{span[-1].name}", "range", span)

    def bare_feed_forwards(self) -> list[Site]:
        """The sites with bare feed-forwards.

        A feed-forward that comes after its block's attentions is a site alone. One that runs beside the attention is one
        site with it, up to the projection that joins the two.
        """
        found, known = [], dict[str, tuple[str, int, int] | None]()
        for block in self._top_level:
            like = (block.twin or block).name
            if like not in known:
                known[like] = self._bare_feed_forward(block.twin or block)
            place = known[like]
            if place is not None:
                kind, first, last = place
                span = self._bare_parts(block)[first : last + 1]
                found.append(self._site(f"{span[0].name}..{span[-1].name}", kind, span))
        return found

    def _bare_feed_forward(self, block: UnitCall) -> tuple[str, int, int] | None:
        """Kind of the site with a block's bare feed-forward, and the indices of its first and last part."""
        parts = self._bare_parts(block)
        work = [call for call in parts if is_attention_or_projection(call.module)]
        if not work:
            return None
        after = self._after_attention(work)
        first, last = parts.index((after or work)[0]), parts.index(work[-1])
        return "feed-forward" if after else "parallel", first, last

    def _bare_parts(self, block: UnitCall) -> list[UnitCall]:
        return [call for call in self._parts(block) if call.path in self.bare]

    def _depths(self) -> list[Site]:
        """A UNet's depths, outermost first.

        A layer that is given a long skip needs two things: what was computed before the skip begins, and what the layer
        before it returns. All layers between the two are the deeper part, and are one site.
        """
        layers = [layer for unit in self.stack for layer in self._layers(unit)]
        found: list[Site] = []
        inner = 0
        for last in range(len(layers) - 2, -1, -1):
            here = layers[last]
            if not self.trace.reads_old(here.begin, here.end, layers[last + 1].end):
                continue  # the next layer is given no skip
            spans = (layers[first : last + 1] for first in range(inner, last + 1))
            span = next((span for span in spans if reason_against(span, self.trace) is None), None)
            if span is not None:
                found.append(self._site(f"depth {len(found) + 1}", "depth", span))
                inner = layers.index(span[0]) + 1
        return found

    def _after_attention(self, work: list[UnitCall]) -> list[UnitCall]:
        """The projections after the last attention, if they are a feed-forward on what was made since; else none."""
        last = max((i for i, call in enumerate(work) if is_attention(call.module)), default=len(work))
        projections = work[last + 1 :]
        if len(projections) < 2:
            return []
        begin, end = work[last].end, projections[0].begin
        newer = any(self.trace.writes(storage, begin, end) for _, storage, _ in projections[0].inputs)
        return projections if newer else []

    def _parts(self, block: UnitCall) -> list[UnitCall]:
        """The calls of units directly inside a block's call."""
        return self._parts_of[block.name]

    def _layers(self, block: UnitCall) -> list[UnitCall]:
        """The layers that a block consists of, or the block itself if it has none."""
        return [call for call in self._parts(block) if call.is_in_list] or [block]

    def _site(self, name: str, kind: str, span: list[UnitCall]) -> Site:
        if span[0].depth > 0 and span[0].twin is not None:
            twin = self._twin_site(kind, [call.twin for call in span if call.twin is not None])
            units = tuple(call.name for call in span)
            return replace(twin, name=name, units=units)
        return Site(
            name=name,
            kind=kind,
            units=tuple(call.name for call in span),
            streams=tuple(tuple(output[1]) for output in span[-1].outputs if output is not None),
            parameters=None,
            share=sum(call.flops for call in span) / self._total_flops,
            reason=reason_against(span, self.trace),
            continues=span[-1].continues,
        )

    def _counted(self, site: Site) -> Site:
        """A site of the table, with the number of its parameters."""
        modules = [self.calls[self._indices[unit]].module for unit in site.units] or [self.denoiser]
        return replace(site, parameters=_parameters_of(modules))

    def _twin_site(self, kind: str, span: list[UnitCall]) -> Site:
        """The site of a span inside a traced block, which is that of equal blocks too.

        Raises:
            Unlike: it may not be: the span writes to memory that lasts, and what reads that memory has not been compared.
        """
        key = kind, span[0].name, span[-1].name
        if key not in self._sites:
            site = self._sites[key] = self._site("", kind, span)
            block = next(block for block in self._top_level if span[0] in self._parts_of[block.name])
            lasting = {storage for _, storage, _ in block.inputs} | _storages([block])
            missing = self.trace.written(span[0].begin, span[-1].end) - _storages(span[-1:])
            shared = _storages(span[:-1]) & _storages(span[-1:])
            if site.reason not in (NO_TENSOR, WRITES, REFILLS) and lasting & (missing | shared):
                raise Unlike
        return self._sites[key]


def _parts_by_block(calls: Sequence[UnitCall]) -> dict[str, list[UnitCall]]:
    """The calls of units directly inside each top-level unit's call, by that one's name."""
    found: dict[str, list[UnitCall]] = {}
    parts: list[UnitCall] = []
    for call in calls:
        if call.depth == 0:
            parts = found[call.name] = []
        elif call.depth == 1:
            parts.append(call)
    return found


def _storages(calls: Sequence[UnitCall]) -> set[Storage]:
    """The memory of what they returned."""
    return {output[0] for call in calls for output in call.outputs if output is not None}


def _between(calls: list[UnitCall], first: UnitCall, last: UnitCall) -> list[UnitCall]:
    return calls[calls.index(first) : calls.index(last) + 1]


def reason_against(span: Sequence[UnitCall], trace: Trace) -> str | None:
    """Why a span of units must not be skipped, or None."""
    replaced = {output[0] for output in span[-1].outputs if output is not None}
    begin, end = span[0].begin, span[-1].end
    if not replaced:
        return NO_TENSOR
    if trace.writes_outside(begin, end):
        return WRITES
    if any(call.refills for call in span):
        return REFILLS
    # Memory that an earlier unit returned too holds another tensor there, which the cache does not supply.
    shared = replaced & {output[0] for call in span[:-1] for output in call.made}
    if trace.leaks([(call.begin, call.end) for call in span], replaced) or trace.reads(shared, end):
        return SKIPPED_IS_USED
    return None if any(call.evolves for call in span) else NOT_EVOLVING


def _parameters_of(modules: Sequence[nn.Module]) -> int:
    """The number of their parameters; shared ones count once."""
    parts = (part for module in modules for part in modules_inside(module))
    held = (p for part in parts for p in vars(part)["_parameters"].values() if p is not None)
    unique = {id(p): p.numel() for p in held}
    return sum(unique.values())
