"""Cuts: the sites of one denoiser in one guidance pass, and what later calls need in order to skip them."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from diffcache.discovery.sites import Site
from diffcache.host.leaves import tensors_of
from diffcache.host.structure import PLAIN


class Blank(Tensor):
    """What stands for a tensor that was not computed, and all that is computed from it: torch hands a subclass on from operation to operation."""


class _TensorForm(NamedTuple):
    """Shape, dtype and device of a tensor."""

    size: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def make(self) -> Tensor:
        """A tensor of this form: uninitialised and `Blank` if it is floating, else zeros, because the forward may index with it."""
        if self.dtype.is_floating_point:
            return torch.empty(self.size, dtype=self.dtype, device=self.device).as_subclass(Blank)
        return torch.zeros(self.size, dtype=self.dtype, device=self.device)


class Placeholder:
    """Makes outputs with the structure, shapes and dtypes of a unit's output, but without its content.

    When a site of several units is skipped, all units but the last return placeholders. Nothing that the forward returns may depend on their
    content: `holds_blank` tells.

    Args:
        given: the unit's tensor arguments by path. Those that the unit returned unchanged are returned unchanged.
        output: what the unit returned.

    Attributes:
        may_be_shared: what it makes may stand for several calls: nothing but floating-point tensors, with which no forward indexes.
    """

    def __init__(self, given: Mapping[str, Tensor], output: Any) -> None:
        leaves, self._spec = pytree.tree_flatten(output)
        paths = {id(tensor): path for path, tensor in given.items()}
        self._passed = {i: paths[id(leaf)] for i, leaf in enumerate(leaves) if id(leaf) in paths}
        self._leaves = [_form(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.may_be_shared = not self._passed and all(
            isinstance(part, Tensor) and part.is_floating_point()
            for part in (output if type(output) is tuple else (output,))
        )

    @property
    def form(self) -> Hashable:
        """The same for two that make the same, and may both be shared."""
        return self._spec.type, tuple(self._leaves)

    @property
    def is_plain(self) -> bool:
        """Whether it holds nothing but forms and plain values: no object of the forward that may hold a tensor."""
        return all(isinstance(leaf, (_TensorForm, *PLAIN)) for leaf in self._leaves)

    @property
    def passes(self) -> bool:
        """Whether the unit returned an argument unchanged: then `make` needs the arguments."""
        return bool(self._passed)

    def make(self, given: Mapping[str, Tensor]) -> Any:
        """An output for a call with these tensor arguments; where nothing `passes`, they may be left out."""
        if self._spec.is_leaf() and not self._passed:
            (leaf,) = self._leaves
            return leaf.make() if isinstance(leaf, _TensorForm) else leaf
        leaves = [
            given[self._passed[i]]
            if i in self._passed
            else leaf.make()
            if isinstance(leaf, _TensorForm)
            else leaf
            for i, leaf in enumerate(self._leaves)
        ]
        return pytree.tree_unflatten(leaves, self._spec)


def holds_blank(output: Any) -> bool:
    """Whether what a forward returned depends on the content of placeholders."""
    return any(isinstance(tensor, Blank) for tensor in tensors_of(output))


def without_blanks(output: Any) -> Any:
    """The same values, of which nothing tells any more that they are no values."""
    return pytree.tree_map_only(Blank, lambda blank: blank.as_subclass(Tensor), output)


def _form(tensor: Tensor) -> _TensorForm:
    return _TensorForm(tuple(tensor.shape), tensor.dtype, tensor.device)


@dataclass(frozen=True)
class Cuts:
    """Where the forward is cut.

    Attributes:
        sites: the sites that are cached, in the order in which the forward reaches them.
        placeholders: for every unit of a site but its last, by the unit's name.
        paths: path of each unit that is watched, by the module's identity.
        tap: name of the unit on which signals are measured; "" if they are measured on the denoiser's latents.
        tapped_output: which of its outputs is its latent, changed; None where signals are not the change of a latent.
        reuses_memory: what a unit was given or returned may be overwritten as soon as another module is called.
        looked_at: path of each unit that was watched to find the sites, by the module's identity.
        calls: the names of these units' calls, in order.
    """

    sites: tuple[Site, ...]
    placeholders: dict[str, Placeholder]
    paths: dict[int, str]
    tap: str
    reuses_memory: bool = False
    looked_at: Mapping[int, str] = field(default_factory=dict)
    calls: tuple[str, ...] = ()
    tapped_output: int | None = None

    @cached_property
    def starts(self) -> dict[str, Site]:
        """The sites by the name of their first unit."""
        return {site.units[0]: site for site in self.sites}

    @cached_property
    def edges(self) -> dict[int, str]:
        """The part of `paths` that a call which skips nothing has to watch: first and last units, and the tapped one."""
        names = {self.tap, *(site.units[i] for site in self.sites for i in (0, -1))}
        wanted = {name.split("#")[0] for name in names}
        return {key: path for key, path in self.paths.items() if path in wanted}

    @cached_property
    def share(self) -> float:
        """The sites' share of the forward's floating-point operations."""
        return sum(site.share for site in self.sites)
