"""Sites inside a denoiser: its forward runs, and the units that a site spans are computed and stored, or skipped.

The first computed call of a branch is traced, which shows the sites; it is stored like any other.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from diffcache.calls import Call
from diffcache.discovery import Recorder, Site, SiteTable, in_list, sites_of
from diffcache.layout import Layout
from diffcache.predictors import Predictor
from diffcache.schedulers.errors import TargetError
from diffcache.store import Store
from diffcache.timetable import Timetable
from diffcache.trace import Trace
from diffcache.units import blocks_of, sub_layers_of, watched

Forward = Callable[..., Any]

SUB_LAYERS = ("self-attention", "cross-attention", "joint-attention", "feed-forward")
GROUPS = {"sub-layer": SUB_LAYERS, "attention": SUB_LAYERS[:3], "block": ("block",), "stack": ("stack",)}


def units_of(denoiser: nn.Module, where: str) -> dict[str, nn.Module]:
    """The units that must be seen to cache at `where`, by path."""
    blocks = blocks_of(denoiser)
    if where not in GROUPS["sub-layer"] and where not in ("sub-layer", "attention"):
        return blocks
    return {
        f"{b}.{path}": layer for b, block in blocks.items() for path, layer in sub_layers_of(block).items()
    }


def units_to_see(denoiser: nn.Module, where: str) -> list[nn.Module]:
    """Every unit that a cache at `where` needs to see: the traced call sees blocks as well as sub-layers."""
    return list({**blocks_of(denoiser), **units_of(denoiser, where)}.values())


def chosen(table: SiteTable, where: str) -> list[Site]:
    """The sites that `where` names ("stack", "block", "attention", "depth 1", a site's own name).

    Raises:
        TargetError: there are none that can be cached; the sentence says why not.
    """
    kinds = GROUPS.get(where, (where,))
    named = [site for site in table if site.kind in kinds or site.name == where]
    usable = [site for site in named if site.reason is None]
    if usable:
        return usable
    why = (
        named[0].reason if named else f"it has none: {', '.join(dict.fromkeys(site.kind for site in table))}"
    )
    raise TargetError(f'{table.denoiser} cannot be cached at {where!r}: {why}; leave `site` at "model".')


class Blank:
    """What a unit returned, by form alone: stands in for its output where a whole span is skipped."""

    def __init__(self, output: Any) -> None:
        leaves, self._spec = pytree.tree_flatten(output)
        self._leaves = [_form(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def make(self) -> Any:
        """An output of that form with arbitrary content, which nothing outside the span gets to see."""
        leaves = [torch.empty(*leaf.size, dtype=leaf.dtype, device=leaf.device) if isinstance(leaf, _Form) else leaf
                  for leaf in self._leaves]  # fmt: skip
        return pytree.tree_unflatten(leaves, self._spec)


@dataclass(frozen=True)
class _Form:
    size: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def _form(tensor: Tensor) -> _Form:
    return _Form(tuple(tensor.shape), tensor.dtype, tensor.device)


@dataclass
class Interior:
    """The sites of one branch of one denoiser, with what they have stored.

    Attributes:
        where: which sites.
        residual: store what the span adds to its input; sub-layers and depths always store their output.
        depth: how many past features.
        sites: None until the first computed call.
        stores: by site name.
        blanks: form of the output of every unit inside a span, by unit name.
    """

    where: str
    residual: bool
    depth: int
    sites: list[Site] | None = None
    stores: dict[str, Store] = field(default_factory=dict)
    blanks: dict[str, Blank] = field(default_factory=dict)

    def compute(self, denoiser: nn.Module, forward: Forward, call: Call, tick: int) -> Any:
        """Runs the forward in full and stores what its sites gave."""
        if self.sites is None:
            return self._learn(denoiser, forward, call, tick)
        with watched(_Computing(self, units_of(denoiser, self.where), tick)):
            return forward(*call.args, **call.kwargs)

    def reuse(
        self,
        denoiser: nn.Module,
        forward: Forward,
        call: Call,
        predictor: Predictor,
        tick: int,
        times: Timetable,
    ) -> Any:
        """Runs the forward without what its sites span."""
        with watched(_Skipping(self, units_of(denoiser, self.where), predictor, tick, times)):
            return forward(*call.args, **call.kwargs)

    @property
    def share(self) -> float:
        """Share of the forward's operations that the sites span."""
        return sum(site.share for site in self.sites or ())

    def tensors(self) -> Iterator[Tensor]:
        for store in self.stores.values():
            yield from store.tensors()

    def clear(self) -> None:
        for store in self.stores.values():
            store.clear()
        self.sites, self.stores, self.blanks = None, {}, {}

    def has(self, site: Site) -> bool:
        """Whether something is stored of a site: else it is computed."""
        return len(self.stores.get(site.name, ())) > 0

    def push(self, site: Site, first: Call, output: Any, tick: int) -> None:
        """Stores what a site's last unit returned, against what its first was given."""
        store = self.stores.setdefault(site.name, Store(self.depth))
        store.seat(1)
        residual = self.residual and site.kind in ("stack", "block")
        store.layout = Layout(first, output, residual=residual, continues=site.continues)
        store.push(tick, 0, first.tensors, store.layout.split(output))

    def _learn(self, denoiser: nn.Module, forward: Forward, call: Call, tick: int) -> Any:
        units = {**blocks_of(denoiser), **units_of(denoiser, self.where)}
        with Trace(call.latents) as trace:
            learning = _Learning(units, trace, self.where)
            with watched(learning):
                output = forward(*call.args, **call.kwargs)
            learning.finish()
            trace.read_at_end(leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor))
        table = sites_of(denoiser, learning.calls, trace, output)
        self.sites = chosen(table, self.where)
        for site in self.sites:
            self.blanks.update({name: learning.blanks[name] for name in site.units[:-1]})
            first, last = learning.kept.get(site.units[0]), learning.kept.get(site.units[-1])
            if first is not None and last is not None and not learning.stale(site.units[0]):
                self.push(site, first[0], last[1], tick)
        return output


class _Learning(Recorder):
    """Records the traced forward, and keeps copies of what its sites may turn out to need.

    Of a stack only the first unit's arguments and the newest one's output are kept; of other sites all.
    """

    def __init__(self, units: dict[str, nn.Module], trace: Trace, where: str) -> None:
        super().__init__(units, trace)
        self.where = where
        self.kept: dict[str, tuple[Call, Any]] = {}
        self.blanks: dict[str, Blank] = {}
        self._states: dict[str, Any] = {}

    def stale(self, name: str) -> bool:
        """The arguments that were kept have been written to since."""
        return bool(self.kept[name][0].state() != self._states[name])

    def unit(self, module: nn.Module, forward: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if id(module) not in self.paths:
            return forward(*args, **kwargs)
        call, place = Call(module, args, kwargs), len(self.calls)
        state = call.state()
        output = super().unit(module, forward, args, kwargs)
        unit = self.calls[place]
        self.blanks[unit.name] = Blank(output)
        if self.where != "stack" or (unit.evolves and in_list(unit) and unit.depth == 0):
            copy = pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, output)
            self._keep(unit.name, call, copy, state)
        return output

    def _keep(self, name: str, call: Call, output: Any, state: Any) -> None:
        if self.where == "stack" and len(self.kept) == 2:
            self.kept.popitem()
        self.kept[name], self._states[name] = (call, output), state


class _Pass:
    """A later forward: knows the sites, and tells units by path and by how often they have been called."""

    def __init__(self, interior: Interior, units: dict[str, nn.Module], tick: int) -> None:
        self.interior = interior
        self.tick = tick
        self.paths = {id(module): path for path, module in units.items()}
        self.counts: dict[str, int] = {}
        self.open: dict[str, Call] = {}
        sites = interior.sites or []
        self.starts = {site.units[0]: site for site in sites}
        self.ends = {site.units[-1]: site for site in sites}

    def name(self, module: nn.Module) -> str | None:
        """Of this call of a unit, as discovery named it."""
        path = self.paths.get(id(module))
        if path is None:
            return None
        nth = self.counts.get(path, 0)
        self.counts[path] = nth + 1
        return path if nth == 0 else f"{path}#{nth}"


class _Computing(_Pass):
    def unit(self, module: nn.Module, forward: Forward, args: Any, kwargs: dict[str, Any]) -> Any:
        name = self.name(module)
        if name in self.starts:
            self.open[self.starts[name].name] = Call(module, args, kwargs)
        output = forward(*args, **kwargs)
        site = self.ends.get(name or "")
        if site is not None and site.name in self.open:
            self.interior.push(site, self.open.pop(site.name), output, self.tick)
        return output


class _Skipping(_Pass):
    def __init__(
        self,
        interior: Interior,
        units: dict[str, nn.Module],
        predictor: Predictor,
        tick: int,
        times: Timetable,
    ) -> None:
        super().__init__(interior, units, tick)
        self.predictor = predictor
        self.times = times

    def unit(self, module: nn.Module, forward: Forward, args: Any, kwargs: dict[str, Any]) -> Any:
        name = self.name(module)
        begun = self.starts.get(name or "")
        if begun is not None and self.interior.has(begun):
            self.open[begun.name] = Call(module, args, kwargs)
        site = self.ends.get(name or "")
        if site is not None and site.name in self.open:
            store, first = self.interior.stores[site.name], self.open.pop(site.name)
            value = store.value(self.predictor, self.tick, self.times, 0, first.tensors)
            return store.learned.join(value, first.tensors)
        if self.open:
            return (
                self.interior.blanks[name].make()
                if name in self.interior.blanks
                else forward(*args, **kwargs)
            )
        return forward(*args, **kwargs)
