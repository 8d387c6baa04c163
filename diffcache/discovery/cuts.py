"""Anatomy: where one denoiser can be cut for one guidance pass, as its first computed call showed."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from diffcache.discovery.sites import Site


@dataclass(frozen=True)
class Form:
    """A tensor without its content."""

    size: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def make(self) -> Tensor:
        """Of arbitrary content; what is not floating is zero, because the forward may index with it."""
        new = torch.empty if self.dtype.is_floating_point else torch.zeros
        return new(self.size, dtype=self.dtype, device=self.device)


class Blank:
    """What a unit returned, by form alone: stands in for its output where a whole span is skipped.

    Args:
        given: the unit's arguments; of these, what it only hands on is handed on by its stand-in too.
        output: what it returned.
    """

    def __init__(self, given: Mapping[str, Tensor], output: Any) -> None:
        leaves, self._spec = pytree.tree_flatten(output)
        paths = {id(tensor): path for path, tensor in given.items()}
        self._passed = {i: paths[id(leaf)] for i, leaf in enumerate(leaves) if id(leaf) in paths}
        self._leaves = [_form(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def make(self, given: Mapping[str, Tensor]) -> Any:
        """An output of that form with arbitrary content, which nothing outside the span gets to see."""
        leaves = [
            given[self._passed[i]] if i in self._passed else leaf.make() if isinstance(leaf, Form) else leaf
            for i, leaf in enumerate(self._leaves)
        ]
        return pytree.tree_unflatten(leaves, self._spec)


def _form(tensor: Tensor) -> Form:
    return Form(tuple(tensor.shape), tensor.dtype, tensor.device)


@dataclass(frozen=True)
class Anatomy:
    """What later calls need to know.

    Attributes:
        sites: the places that are cached, in the order in which the forward reaches them.
        blanks: of every unit inside a span but its last, by unit name.
        paths: of the units that matter, by module identity.
        tap: name of the unit on which signals are measured; "" for none.
    """

    sites: tuple[Site, ...]
    blanks: dict[str, Blank]
    paths: dict[int, str]
    tap: str

    @cached_property
    def starts(self) -> dict[str, Site]:
        """The sites by their first unit."""
        return {site.units[0]: site for site in self.sites}

    @cached_property
    def edges(self) -> dict[int, str]:
        """Of `paths` those of units with which a site begins or ends, and of the tapped one."""
        names = {self.tap, *(site.units[i] for site in self.sites for i in (0, -1))}
        return {
            key: path for key, path in self.paths.items() if path in {name.split("#")[0] for name in names}
        }

    @cached_property
    def share(self) -> float:
        """Share of the forward's operations that the sites span."""
        return sum(site.share for site in self.sites)
