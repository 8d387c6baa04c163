"""Surveys: every place at which a denoiser can be cut, told from one forward, and why some must not be."""

from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from diffcache.discovery.sites import Site, SiteTable
from diffcache.discovery.storage_trace import Trace
from diffcache.discovery.unit_recorder import UnitCall, in_list, kind_of
from diffcache.discovery.units import is_attention, is_sub_layer, works
from diffcache.schedulers.steps import MODEL

SKIPPED_IS_USED = "what it computes inside is used after it (a skip connection): skipping it would lose that"
WRITES = "it writes to memory that was there before it (a K/V cache, an argument)"
REFILLS = "it changes which tensors a list or dict that it is given holds: skipping it would skip that"
NOT_EVOLVING = "it does not depend on the latents: nothing changes from tick to tick but the time"
NO_TENSOR = "it returns no tensor"


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
            parameters=parameters_of([call.module for call in span]),
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


def parameters_of(modules: Sequence[nn.Module]) -> int:
    """How many they have, those that they share counted once."""
    unique = {id(p): p.numel() for module in modules for p in module.parameters()}
    return sum(unique.values())
