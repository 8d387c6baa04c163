"""The first call of a guidance pass: it is computed in full, recorded to find the sites, and stored like any other.

Which units are sites is known only when the forward is over. Until then, the tensors that sites may need are kept: of a
site of several units the arguments of its first unit and the newest output of its last one, and of each block its call
until the next block shows which of its outputs continue which arguments.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from diffcache.discovery.cuts import Cuts, Placeholder
from diffcache.discovery.site_finder import SiteFinder
from diffcache.discovery.site_names import (
    FIRST_BLOCK,
    GROUPS,
    may_be_bare,
    range_of_stack,
    sites_named,
    units_for,
)
from diffcache.discovery.sites import Site
from diffcache.discovery.taps import Tap
from diffcache.discovery.unit_recorder import UnitCall, UnitRecorder
from diffcache.discovery.units import (
    bare_parts_of_blocks,
    is_attention_or_projection,
    is_list_member,
    is_sub_layer,
)
from diffcache.hooks.class_swap import base_class
from diffcache.host.call import Call

Forward = Callable[..., Any]


class StoreSite(Protocol):
    """Stores what a computed site returned.

    Args:
        site: name of the site.
        kind: `Site.kind`.
        first: the call of the site's first unit.
        output: what the site's last unit returned.
        continues: `Site.continues`.
    """

    def __call__(self, site: str, kind: str, first: Call, output: Any, continues: Any) -> None: ...


def compute_first_call(
    denoiser: nn.Module, forward: Forward, call: Call, names: Sequence[str], tap: Tap | None, store: StoreSite
) -> tuple[Any, Cuts, list[Tensor] | None]:
    """Computes a denoiser call in full, finds its sites, and stores what they returned.

    Args:
        denoiser: the denoiser, whose units' classes are swapped.
        forward: its plain forward.
        call: the arguments.
        names: the names of the sites to cache (see `site_names`).
        tap: what signals are measured on; None for the denoiser's latents.
        store: is called once for each computed site, during the forward or after it.

    Returns:
        The output, the cuts, and what the tap measured (None without a tap).

    Raises:
        TargetError: the denoiser cannot be cached at one of these sites.
    """
    units, bare = units_for(denoiser, names), bare_parts_of_blocks(denoiser)
    recorder = _StoringRecorder(units, call, _Wanted(names, bare), tap, store)
    output = recorder.record(lambda: forward(*call.args, **call.kwargs))
    finder = SiteFinder(denoiser, recorder.calls, recorder.trace, output, bare)
    sites = sites_named(names, finder)
    recorder.store_sites_of_several_units(sites)
    tapped = "" if tap is None else finder.stack[0].name if tap.unit == FIRST_BLOCK else tap.unit
    watched = {name.split("#")[0] for name in (tapped, *(name for site in sites for name in site.units))}
    paths = {id(module): path for path, module in units.items() if path in watched}
    placeholders = {name: recorder.placeholders[name] for site in sites for name in site.units[:-1]}
    return output, Cuts(sites, placeholders, paths, tapped), recorder.tapped


class _Wanted:
    """Tells which recorded calls may belong to the sites that a method names.

    Args:
        names: the names of the sites.
        bare: paths of the parts of blocks that have a bare feed-forward.
    """

    def __init__(self, names: Sequence[str], bare: Collection[str]) -> None:
        self._names = names
        self._bare = bare if may_be_bare(names) else ()
        self._depths = any(name.startswith("depth ") for name in names)

    def block(self, unit: UnitCall) -> bool:
        """Whether the unit is a block that is a site."""
        is_block = unit.depth == 0 and unit.is_in_list
        return is_block and ("block" in self._names or unit.name in self._names)

    def sub_layer(self, unit: UnitCall) -> bool:
        """Whether the unit is a sub-layer that is a site."""
        if unit.depth == 0 or not is_sub_layer(unit.module):
            return False
        return any(unit.kind in GROUPS.get(name, (name,)) or name == unit.name for name in self._names)

    def end_of_depth(self, unit: UnitCall) -> bool:
        """Whether a depth may end with the unit."""
        return self._depths and unit.depth <= 1 and unit.is_in_list

    def end_of_bare(self, unit: UnitCall) -> bool:
        """Whether a site with a bare feed-forward may end with the unit."""
        return unit.depth == 1 and unit.path in self._bare and is_attention_or_projection(unit.module)

    def ranges(self) -> "list[_Range]":
        """The ranges of blocks that are sites."""
        return [found for name in self._names if (found := _range(name)) is not None]


@dataclass
class _Kept:
    """A unit's call that is kept because a site may begin with it.

    Attributes:
        unit: its record.
        call: its arguments.
        state: of the arguments when the unit was called (`Call.state`).
        output: a copy of what the site's last unit returned.
        last: name of that last unit.
    """

    unit: UnitCall
    call: Call
    state: Any
    output: Any = None
    last: str = ""

    @property
    def is_overwritten(self) -> bool:
        """The arguments have been written to since the call."""
        return bool(self.call.state() != self.state)


class _Range:
    """A range of blocks, and what is kept of it.

    Args:
        first, last: names of the units, or their indices in the stack. `last` None: to the end of the stack.
    """

    def __init__(self, first: str | int, last: str | int | None) -> None:
        self.first, self.last = first, last
        self.kept: _Kept | None = None

    def called(self, kept: _Kept, index: int, output: Any) -> None:
        """Keeps a top-level unit's call if the range begins with it, and its output if the range may end with it."""
        unit = kept.unit
        if self.kept is None and self.first in (unit.name, index):
            self.kept = kept
        may_end = self.last is None and unit.evolves and unit.is_in_list and bool(unit.made)
        if self.kept is not None and (may_end or self.last in (unit.name, index)):
            self.kept.output, self.kept.last = _copy(output), unit.name


class _StoringRecorder(UnitRecorder):
    """Records the first call, and stores each site as soon as it is known to be one.

    Attributes:
        placeholders: for each unit, by name.
        tapped: what the tap measured; None if nothing.
    """

    def __init__(
        self, units: dict[str, nn.Module], call: Call, wanted: _Wanted, tap: Tap | None, store: StoreSite
    ) -> None:
        super().__init__(units, call.latents)
        self.placeholders: dict[str, Placeholder] = {}
        self.tapped: list[Tensor] | None = None
        self._wanted, self._tap, self._store = wanted, tap, store
        self._ranges = wanted.ranges()
        self._index = -1  # in the stack, of the newest top-level unit
        self._blocks: list[_Kept] = []
        self._ends: dict[str, tuple[Call, Any]] = {}
        self._newest_end: dict[str, str] = {}

    def record(self, forward: Callable[[], Any]) -> Any:
        output = super().record(forward)
        self._store_blocks(is_over=True)
        return output

    def unit(self, module: nn.Module, forward: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        path, index, is_top_level = self.watches[id(module)], len(self.calls), not self._open
        call = Call.of(module, args, kwargs)
        state = call.state()
        if is_top_level:
            self._count(path, call)
        tap = self._tap if is_top_level and self._is_tapped(path) else None
        if tap is not None and tap.is_ahead:
            self.tapped = tap.ahead(module, args, kwargs)
        output = super().unit(module, forward, args, kwargs)
        unit = self.calls[index]
        self.placeholders[unit.name] = Placeholder(call.tensors, output)
        with self.trace.untraced():
            if tap is not None and not tap.is_ahead:
                self.tapped = tap.after(call, output)
            if is_top_level:
                for each in self._ranges:
                    each.called(_Kept(unit, call, state), self._index, output)
            self._keep_or_store(unit, call, state, output)
        return output

    def store_sites_of_several_units(self, sites: Sequence[Site]) -> None:
        """Stores the sites that span several units, once it is known which they are."""
        ranges = {
            (kept.unit.name, kept.last): kept for each in self._ranges if (kept := each.kept) is not None
        }
        for site in sites:
            kept = ranges.get((site.units[0], site.units[-1]))
            is_bare = site.kind in ("parallel", "feed-forward") and len(site.units) > 1
            if site.kind == "depth" or is_bare:
                call, output = self._ends[site.units[-1]]
                self._store(site.name, site.kind, call, output, {})
            elif kept is not None and not kept.is_overwritten:
                self._store(site.name, site.kind, kept.call, kept.output, site.continues)

    def _follow_streams(self, unit: UnitCall) -> None:
        super()._follow_streams(unit)
        if unit.depth == 0:
            self._store_blocks(is_over=False)

    def _keep_or_store(self, unit: UnitCall, call: Call, state: Any, output: Any) -> None:
        """Stores a sub-layer that is a site, and keeps what may turn out to be one, or to end one."""
        wanted = self._wanted
        if wanted.block(unit):
            self._blocks.append(_Kept(unit, call, state, _copy(output)))
        elif wanted.sub_layer(unit):
            self._store(unit.name, unit.kind, call, output, {})
        if wanted.end_of_depth(unit):
            self._ends[unit.name] = call, _copy(output)
        if wanted.end_of_bare(unit):
            block = unit.path.rpartition(".")[0]
            self._ends.pop(self._newest_end.get(block, ""), None)  # only a block's last part can end its site
            self._ends[unit.name], self._newest_end[block] = (call, _copy(output)), unit.name

    def _store_blocks(self, *, is_over: bool) -> None:
        """Stores the blocks whose outputs are known to continue arguments; all of them when the forward is over."""
        waiting = []
        with self.trace.untraced():
            for kept in self._blocks:
                continues = self.streams.get(base_class(type(kept.unit.module)))
                if continues is None and not is_over:
                    waiting.append(kept)
                elif not kept.is_overwritten:
                    self._store(kept.unit.name, "block", kept.call, kept.output, continues or {})
        self._blocks = waiting

    def _count(self, path: str, call: Call) -> None:
        """Counts top-level units from the stack's first block on: the first list member that evolves."""
        if self._index >= 0 or (is_list_member(path) and self.trace.evolves(call.tensors.values())):
            self._index += 1

    def _is_tapped(self, path: str) -> bool:
        """Whether the tap measures on the top-level unit that is called now."""
        if self._tap is None or self.tapped is not None:
            return False
        return self._index == 0 if self._tap.unit == FIRST_BLOCK else self._tap.unit == path


def _range(name: str) -> _Range | None:
    """The range of blocks that a site's name means, if any."""
    indices = range_of_stack(name)
    if indices is not None:
        return _Range(*indices)
    if name == "stack":
        return _Range(0, None)
    return _Range(*name.split("..", 1)) if ".." in name else None


def _copy(output: Any) -> Any:
    """A copy, because later units may write into what this one returned."""
    return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, output)
