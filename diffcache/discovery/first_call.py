"""Learning: a branch's first computed forward shows where the denoiser can be cut, and is stored like any other.

What the cuts will be is known only when the forward is over. Until then no more is kept than they can need: of a span
its first call's arguments and its newest output, of a block whatever its successor has not explained yet.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from diffcache.discovery.cuts import Anatomy, Blank
from diffcache.discovery.site_finder import Survey
from diffcache.discovery.site_names import FIRST_BLOCK, GROUPS, may_be_bare, positions, sites_at, units_for
from diffcache.discovery.sites import Site
from diffcache.discovery.storage_trace import Trace
from diffcache.discovery.taps import Tap
from diffcache.discovery.unit_recorder import Recorder, UnitCall, in_list, kind_of
from diffcache.discovery.units import bare_parts_of_blocks, is_member, is_sub_layer, works
from diffcache.hooks.class_swap import base_class
from diffcache.hooks.watcher import watched
from diffcache.host.call import Call

Forward = Callable[..., Any]


class Keep(Protocol):
    """Stores what a site's last unit returned, against what its first was given."""

    def __call__(self, site: str, kind: str, first: Call, output: Any, continues: Any) -> None: ...


def learn(
    denoiser: nn.Module, forward: Forward, call: Call, places: Sequence[str], tap: Tap | None, keep: Keep
) -> tuple[Any, Anatomy, list[Tensor] | None]:
    """Runs the forward in full: its output, where it can be cut, and what the tap gave.

    Raises:
        TargetError: it cannot be cut at these places.
    """
    units = units_for(denoiser, places)
    with Trace(call.latents) as trace:
        learning = _Learning(units, trace, places, tap, keep, bare_parts_of_blocks(denoiser))
        with watched(learning):
            output = forward(*call.args, **call.kwargs)
        learning.finish()
        trace.read_at_end(leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor))
    survey = Survey(type(denoiser).__name__, 0, learning.calls, trace, output, learning.bare)
    sites = sites_at(places, survey)
    learning.keep_spans(sites)
    named = "" if tap is None else survey.stack[0].name if tap.unit == FIRST_BLOCK else tap.unit
    wanted = {name.split("#")[0] for site in sites for name in site.units} | {named.split("#")[0]}
    paths = {id(module): path for path, module in units.items() if path in wanted}
    blanks = {name: learning.blanks[name] for site in sites for name in site.units[:-1]}
    return output, Anatomy(sites, blanks, paths, named), learning.seen


@dataclass
class _Kept:
    """A call that may turn out to begin a site, and the output that may end it."""

    unit: UnitCall
    call: Call
    state: Any
    output: Any = None
    last: str = ""

    @property
    def stale(self) -> bool:
        """Its arguments have been written to since."""
        return bool(self.call.state() != self.state)


class _Span:
    """The units from one to another, given by name or by position in the stack; the last may be open."""

    def __init__(self, first: str | int, last: str | int | None) -> None:
        self.first, self.last = first, last
        self.kept: _Kept | None = None

    def notice(self, kept: _Kept, position: int, output: Any) -> None:
        unit = kept.unit
        if self.kept is None and self.first in (unit.name, position):
            self.kept = kept
        open_end = self.last is None and unit.evolves and in_list(unit) and bool(unit.made)
        if self.kept is not None and (open_end or self.last in (unit.name, position)):
            self.kept.output, self.kept.last = _copy(output), unit.name


class _Learning(Recorder):
    def __init__(
        self,
        units: dict[str, nn.Module],
        trace: Trace,
        places: Sequence[str],
        tap: Tap | None,
        keep: Keep,
        bare: Collection[str],
    ) -> None:
        super().__init__(units, trace)
        self.bare = bare
        self.places = places
        self.tap = tap
        self.keep = keep
        self.seen: list[Tensor] | None = None
        self.blanks: dict[str, Blank] = {}
        self.spans = [span for place in places if (span := _span(place)) is not None]
        self.position = -1
        self._blocks: list[_Kept] = []
        self._ends: dict[str, tuple[Call, Any]] = {}
        self._newest: dict[str, str] = {}
        self._bare_are_cached = may_be_bare(places)

    def unit(self, module: nn.Module, forward: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        path, place, outermost = self.watches[id(module)], len(self.calls), not self._open
        call = Call.of(module, args, kwargs)
        state = call.state()
        if outermost and (
            self.position >= 0 or (is_member(path) and self.trace.evolves(call.tensors.values()))
        ):
            self.position += 1
        tapped = outermost and self.tap is not None and self._is_tapped(self.tap, path)
        if tapped and self.tap and self.tap.is_ahead:
            self.seen = self.tap.ahead(module, args, kwargs)
        output = super().unit(module, forward, args, kwargs)
        unit = self.calls[place]
        self.blanks[unit.name] = Blank(call.tensors, output)
        with self.trace.aside():
            if tapped and self.tap and not self.tap.is_ahead:
                self.seen = self.tap.after(call, output)
            if outermost:
                for span in self.spans:
                    span.notice(_Kept(unit, call, state), self.position, output)
            self._keep_single(unit, call, state, output)
        return output

    def finish(self) -> None:
        super().finish()
        self._flush(everything=True)

    def keep_spans(self, sites: Sequence[Site]) -> None:
        """Stores of the sites that span several units what was kept for them."""
        spans = {(kept.unit.name, kept.last): kept for span in self.spans if (kept := span.kept) is not None}
        for site in sites:
            kept = spans.get((site.units[0], site.units[-1]))
            bare = site.kind in ("parallel", "feed-forward") and len(site.units) > 1
            if site.kind == "depth" or bare:
                call, output = self._ends[site.units[-1]]
                self.keep(site.name, site.kind, call, output, {})
            elif kept is not None and not kept.stale:
                self.keep(site.name, site.kind, kept.call, kept.output, site.continues)

    def _follow(self, unit: UnitCall) -> None:
        super()._follow(unit)
        if unit.depth == 0:
            self._flush(everything=False)

    def _keep_single(self, unit: UnitCall, call: Call, state: Any, output: Any) -> None:
        """Stores what is a site of its own."""
        is_block = unit.depth == 0 and in_list(unit)
        if is_block and ("block" in self.places or unit.name in self.places):
            self._blocks.append(_Kept(unit, call, state, _copy(output)))
        elif unit.depth > 0 and is_sub_layer(unit.module) and self._wants(unit):
            self.keep(unit.name, kind_of(unit), call, output, {})
        if unit.depth <= 1 and in_list(unit) and any(place.startswith("depth ") for place in self.places):
            self._ends[unit.name] = call, _copy(output)
        if unit.depth == 1 and unit.path in self.bare and self._bare_are_cached and works(unit.module):
            block = unit.path.rpartition(".")[0]
            self._ends.pop(self._newest.get(block, ""), None)  # the last one of a block is what may be needed
            self._ends[unit.name], self._newest[block] = (call, _copy(output)), unit.name

    def _flush(self, *, everything: bool) -> None:
        """Stores the blocks of which it is known by now what continues what."""
        waiting = []
        with self.trace.aside():
            for kept in self._blocks:
                known = self.streams.get(base_class(type(kept.unit.module)))
                if known is None and not everything:
                    waiting.append(kept)
                elif not kept.stale:
                    self.keep(kept.unit.name, "block", kept.call, kept.output, known or {})
        self._blocks = waiting

    def _is_tapped(self, tap: Tap, path: str) -> bool:
        return self.seen is None and (self.position == 0 if tap.unit == FIRST_BLOCK else tap.unit == path)

    def _wants(self, unit: UnitCall) -> bool:
        kind = kind_of(unit)
        return any(kind in GROUPS.get(place, (place,)) or place == unit.name for place in self.places)


def _span(place: str) -> _Span | None:
    at = positions(place)
    if at is not None:
        return _Span(*at)
    if place == "stack":
        return _Span(0, None)
    return _Span(*place.split("..", 1)) if ".." in place else None


def _copy(output: Any) -> Any:
    """Later units may write into what this one returned."""
    return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, output)
