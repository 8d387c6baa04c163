"""Keeps, while a first call is computed, what may turn out to be a site.

Which units are sites is known only when the forward is over, but most of what a site needs is known earlier. The call
needs no more memory than a plain call, what is stored in the end, and the tensors of one block:

- A sub-layer is stored without its input: it is kept when it returns.
- Attention and bare feed-forward side by side, or a bare feed-forward alone, end with their block's last attention or
  projection. Each is held until the next one is called, and the last one is kept when the block returns. If the attention
  belongs to such a site, what was kept of the attention alone is dropped then.
- A UNet's depth ends where the next layer is given a long skip: a layer is kept until the next one has returned. Of the
  ends only the newest ones are kept, because depths are counted from the last one back.
- A block is stored with its input. It is kept when it returns, if shapes or an earlier block of its class tell which
  output continues which argument. Else its input and a copy of its output wait for the next block.
- A range of blocks needs the input of its first block and a copy of its last block's output. For the stack, whose end is
  not known, the copy is replaced at each block.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Generic

from torch import Tensor, nn

from diffcache.discovery.candidates import (
    Arguments,
    Depths,
    GivenCall,
    Keeper,
    KeptT,
    Range,
    Span,
    shapes_tell,
    without_arguments,
)
from diffcache.discovery.cuts import Placeholder
from diffcache.discovery.site_finder import SiteFinder
from diffcache.discovery.site_names import FIRST_BLOCK
from diffcache.discovery.sites import Site
from diffcache.discovery.tapped import Tapped
from diffcache.discovery.twins import FollowingRecorder
from diffcache.discovery.unit_recorder import UnitCall
from diffcache.discovery.units import is_list_member
from diffcache.discovery.wanted import Request, Wanted
from diffcache.hooks.class_swap import base_class
from diffcache.host.call import Call


class KeepingRecorder(FollowingRecorder, Generic[KeptT]):
    """Records the first call, and keeps what may be a site.

    Attributes:
        placeholders: for each unit, by name.
        tapped: what the tap measured; None as long as it has measured nothing.
    """

    def __init__(
        self,
        units: dict[str, nn.Module],
        call: Call,
        request: Request,
        wanted: Wanted,
        keeper: Keeper[KeptT],
    ) -> None:
        super().__init__(units, call.latents, traces_all=request.traces_all)
        self.placeholders: dict[str, Placeholder] = {}
        # By form: units that are alike share one, and so its memory in a call.
        self._known_placeholders: dict[Hashable, Placeholder] = {}
        self.tapped: Tapped | None = None
        self._request, self._wanted, self._keeper = request, wanted, keeper
        self._index = -1  # in the stack, of the newest top-level unit
        self._given: GivenCall | None = None  # of the newest top-level unit, if a site may begin with it
        self._begin = 0  # its index among `calls`
        self._ranges: list[Range[KeptT]] = [Range(name) for name in wanted.ranges]
        self._waiting: list[Span[KeptT]] = []
        self._spans: dict[tuple[str, str], KeptT] = {}  # blocks and ranges, by first and last unit
        # `Site.continues` with which they were kept
        self._continued: dict[tuple[str, str], Mapping[int, str]] = {}
        self._sub_layers: dict[str, KeptT] = {}
        self._depths: Depths[KeptT] = Depths(wanted.depth, self.trace)
        # with which a site with a bare feed-forward may end, and what keeps it
        self._newest_part: tuple[UnitCall, Callable[[], KeptT | None]] | None = None
        self._repeated: list[tuple[UnitCall, KeptT, Any]] = []  # such parts of a block that is not traced
        self._overwritten_parts: set[str] = set()  # whose output their block writes to: they are kept at once
        self._parts: dict[str, KeptT] = {}  # sites of several parts of a block, by the last one

    def forget(self) -> None:
        """Drops everything that was kept for sites."""
        for kept in (self._spans, self._sub_layers, self._parts):
            kept.clear()
        self._waiting, self._ranges, self._depths = [], [], Depths(0, self.trace)
        self._newest_part = self._given = None
        self._repeated.clear()

    def kept_of(self, sites: Sequence[Site]) -> dict[str, KeptT]:
        """What was kept of these sites. What still waits is kept now: the forward is over."""
        found = {site.name: self._kept_of(site) for site in sites}
        return {name: kept for name, kept in found.items() if kept is not None}

    def _kept_of(self, site: Site) -> KeptT | None:
        first, last = site.units[0], site.units[-1]
        if site.kind == "depth":
            return self._depths.ends.get(last)
        if site.kind not in ("stack", "range", "block"):
            return self._parts.get(last) if ".." in site.name else self._sub_layers.get(last)
        for span in (*self._waiting, *(each.newest for each in self._ranges)):
            if span is not None and (span.begin, span.last.name) == (first, last):
                return span.kept_by(self._keeper, site.continues)
        return self._spans.get((first, last))

    def begins(self, unit: UnitCall, call: Call) -> None:
        if self._wanted.end_of_bare(unit):
            self._newest_part = None  # it is not the block's last one
        if unit.depth > 0:
            return
        if self.tapped is not None and not self.tapped.is_followed and is_list_member(unit.path):
            self.tapped.followed_by(unit, call)
        self._keep_waiting()
        if self._index >= 0 or (is_list_member(unit.path) and unit.evolves):
            self._index += 1
        beginning = [each for each in self._ranges if each.begins_with(unit, self._index)]
        self._begin = len(self.calls)
        if beginning or self._wanted.block(unit):
            self._given = GivenCall(call, copies=self._request.reuses_memory)
        for each in beginning:
            each.given, each.begin = self._given, unit.name
        tap = self._request.tap
        if tap is not None and tap.is_ahead and self._is_tapped(unit):
            self._measured(unit, {None: tap.ahead(unit.module, call.args, call.kwargs)})

    def returned(self, unit: UnitCall, call: Call, output: Any) -> None:
        if self._wanted.part_of_span(unit):
            like = None if unit.twin is None else self.placeholders.get(unit.twin.name)
            self.placeholders[unit.name] = like or self._placeholder(call, output)
        if unit.depth == 0:
            self._block_returned(unit, call, output)
        else:
            self._part_returned(unit, call, output)
        self._keeper.waiting(self._bytes_waiting)

    def _placeholder(self, call: Call, output: Any) -> Placeholder:
        made = Placeholder(call.tensors, output)
        return self._known_placeholders.setdefault(made.form, made) if made.may_be_shared else made

    def _bytes_waiting(self) -> int:
        return sum(span.nbytes for span in self._waiting) + sum(each.nbytes for each in self._ranges)

    def repeated(
        self, unit: UnitCall, twin: UnitCall, args: Any, kwargs: dict[str, Any], output: Any
    ) -> None:
        wanted, named = self._wanted, self._wanted.last_parts
        if twin.name in self.placeholders:
            self.placeholders[unit.name] = self.placeholders[twin.name]
        part = unit.name in named or (twin.name in self._parts and twin.name not in named)
        sub_layer = wanted.sub_layer(unit) if wanted.names_one else twin.name in self._sub_layers
        if not (part or sub_layer):
            return
        begin = self.calls[self._begin].path
        copied = self._request.reuses_memory or unit.path.removeprefix(begin) in self._overwritten_parts
        if part and twin.name in self._parts and not (sub_layer or copied):
            self._repeated.append((unit, self._parts[twin.name], output))
            return
        like = self._parts.get(twin.name) or self._sub_layers.get(twin.name)
        call: Arguments = unit.module, args, kwargs
        if like is None:
            kept = self._keeper.keep(unit.kind, Call.of(*call), output, {})
        else:
            kept = self._keeper.keep_again(like, unit.kind, call, output, {})
        if part:
            self._parts[unit.name] = kept
        if sub_layer:
            self._sub_layers[unit.name] = kept

    def _block_returned(self, unit: UnitCall, call: Call, output: Any) -> None:
        tap = self._request.tap
        if tap is not None and not tap.is_ahead and self._is_tapped(unit):
            outputs: Sequence[int | None] = tap.changed(call.latents, output) or (None,)
            self._measured(unit, {i: tap.after(call.latents, output, i) for i in outputs})
        parts = self.calls[self._begin + 1 :]
        if self._wanted.depth and not any(part.depth == 1 and part.is_in_list for part in parts):
            self._depths.layer_returned(unit, unit, lambda: self._keeper.keep(unit.kind, call, output, {}))
        for part, like, made in self._repeated:
            call_of_part: Arguments = part.module, (), {}
            self._parts[part.name] = self._keeper.keep_again(like, part.kind, call_of_part, made, {})
        self._repeated.clear()
        if self._newest_part is not None:
            self._keep_site_of_parts([unit, *parts])
        if self._given is not None and self._wanted.block(unit):
            self._keep_span("block", unit.name, self._given, unit, output)
        self._given = None
        for each in self._ranges:
            if each.given is not None and each.may_end_with(unit):
                each.newest = None  # before its successor is copied
                copy = each.given.adapted(output, copied=True)
                each.newest = Span("range", each.begin, each.given, unit, copy)
            elif each.given is not None and each.ends_with(unit, self._index):
                self._keep_span("range", each.begin, each.given, unit, output)
                each.given = None

    def _keep_span(self, kind: str, begin: str, given: GivenCall, last: UnitCall, output: Any) -> None:
        """Keeps a block or a range now, or lets it wait for the next block."""
        if given.is_overwritten:
            return
        continues, adapted = self._continues(last), given.adapted(output, copied=False)
        twin = last.name if last.twin is None else last.twin.name
        if kind == "block" and continues is not None and self._continued.get((twin, twin)) == continues:
            like, of = self._spans[twin, twin], (last.module, given.call.args, given.call.kwargs)
            self._spans[begin, last.name] = self._keeper.keep_again(like, kind, of, adapted, continues)
        elif continues is not None or shapes_tell(given.call, adapted):
            kept = self._keeper.keep(kind, given.call, adapted, continues or {})
            self._spans[begin, last.name] = kept
            self._continued[begin, last.name] = dict(continues or {})
        else:
            self._waiting.append(Span(kind, begin, given, last, given.adapted(output, copied=True)))

    def _continues(self, unit: UnitCall) -> Mapping[int, str] | None:
        """`Site.continues` of a unit; None if no two units of its class have been called one after the other yet."""
        return self.streams.get(base_class(type(unit.module)))

    def _keep_waiting(self) -> None:
        """Keeps what waits, if the unit that is called now has told which arguments it continues."""
        for span in [span for span in self._waiting if self._continues(span.last) is not None]:
            self._waiting.remove(span)
            continues = self._continues(span.last) or {}
            kept = span.kept_by(self._keeper, continues)
            if kept is not None:
                self._spans[span.begin, span.last.name] = kept
                self._continued[span.begin, span.last.name] = dict(continues)

    def _part_returned(self, unit: UnitCall, call: Call, output: Any) -> None:
        """A unit inside a block has returned: it may be a sub-layer, a layer of a UNet, or end a site of several parts."""
        wanted, made = self._wanted, list[KeptT]()

        def keep() -> KeptT:
            if not made:
                made.append(self._keeper.keep(unit.kind, call, output, {}))
            return made[0]

        if wanted.depth and unit.depth == 1 and unit.is_in_list:
            self._depths.layer_returned(unit, self.calls[self._begin], keep)
        if wanted.end_of_bare(unit):
            self._newest_part = self._part(unit, call, output)
        if unit.name in wanted.last_parts:
            self._parts[unit.name] = keep()
        if wanted.sub_layer(unit):
            self._sub_layers[unit.name] = keep()

    def _part(self, unit: UnitCall, call: Call, output: Any) -> tuple[UnitCall, Callable[[], KeptT | None]]:
        """A part with which its block may end, and what keeps it when the block has returned."""
        keep = partial(self._keeper.keep, unit.kind, *without_arguments(call, output), {})
        part = unit.name.removeprefix(self.calls[self._begin].path)
        if self._request.reuses_memory or part in self._overwritten_parts:
            kept = keep()
            return unit, lambda: kept
        return unit, lambda: None if self._is_overwritten(unit) else keep()

    def _is_overwritten(self, unit: UnitCall) -> bool:
        """Whether what a unit returned has been written to since."""
        return any(self.trace.writes(storage, unit.end, self.trace.now) for storage, _ in unit.made)

    def _keep_site_of_parts(self, calls: Collection[UnitCall]) -> None:
        """A block has returned whose feed-forward is bare: what was kept of its newest part is a site or is dropped.

        Args:
            calls: of the block, and of the units inside it.
        """
        assert self._newest_part is not None
        (last, keep), self._newest_part = self._newest_part, None
        block, *_ = calls
        finder = SiteFinder(block.module, list(calls), self.trace, None, self._wanted.bare)
        for site in finder.bare_feed_forwards():
            if site.reason is None and site.units[-1] == last.name and self._wanted.site(site):
                kept = keep()
                if kept is not None:
                    self._parts[last.name] = kept
                else:
                    self._overwritten_parts.add(last.name.removeprefix(block.path))
                for name in site.units if site.kind == "parallel" else ():
                    self._sub_layers.pop(name, None)

    def _is_tapped(self, unit: UnitCall) -> bool:
        """Whether the tap measures on this top-level unit."""
        tap = self._request.tap
        if tap is None or self.tapped is not None:
            return False
        return self._index == 0 if tap.unit == FIRST_BLOCK else tap.unit == unit.path

    def _measured(self, unit: UnitCall, seen: dict[int | None, list[Tensor]]) -> None:
        if self._request.reuses_memory:
            seen = {i: [tensor.clone() for tensor in tensors] for i, tensors in seen.items()}
        self.tapped = Tapped(unit, seen)
