"""The rows of a call that several requests share: taken apart for each request, and put together again.

Which arguments have rows follows from their shapes. A tensor whose first dimension is the number of rows has them; scalars,
tensors with one row, and positional ids or tables without a batch dimension are the same for all requests.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from diffcache.schedulers.errors import TargetError

Ranges = Sequence[tuple[int, int]]
"""Ranges of rows, each from its first row to the row after its last."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class IndivisibleError(TargetError):
    """Shapes do not tell which rows of a call belong to which request."""


def count_of(rows: Ranges) -> int:
    return sum(end - begin for begin, end in rows)


def consecutive(counts: Iterable[int]) -> list[Ranges]:
    """Ranges one after another."""
    found, begin = list[Ranges](), 0
    for count in counts:
        found.append([(begin, begin + count)])
        begin += count
    return found


@dataclass(frozen=True)
class Form:
    """How the arguments of a shared call are taken apart.

    Attributes:
        total: number of rows.
        has_rows: for each leaf of the arguments, whether it has rows.
        listed: samples are items of lists, not rows of tensors.
    """

    total: int
    has_rows: Sequence[bool]
    listed: bool = False

    def flatten(self, value: Any, total: int | None = None) -> tuple[list[Any], Any]:
        """Leaves and structure; a list with an item for each sample is one leaf."""
        return _flattened(value, (total or self.total) if self.listed else None)

    def parts(self, arguments: Arguments, rows: Sequence[Ranges]) -> list[Arguments]:
        """The arguments of each request."""
        leaves, spec = self.flatten(arguments)
        both = list(zip(leaves, self.has_rows, strict=True))
        return [
            pytree.tree_unflatten([_taken(leaf, own) if has_rows else leaf for leaf, has_rows in both], spec)
            for own in rows
        ]

    def joined(self, arguments: Sequence[Arguments], counts: Sequence[int]) -> Arguments:
        """One call's arguments from those of several, with so many rows each."""
        flat = [self.flatten(one, count) for one, count in zip(arguments, counts, strict=True)]
        columns = zip(*(leaves for leaves, _ in flat), strict=True)
        leaves = [
            _concatenated(column) if has_rows else column[0]
            for column, has_rows in zip(columns, self.has_rows, strict=True)
        ]
        joined: Arguments = pytree.tree_unflatten(leaves, flat[0][1])
        return joined

    def count(self, arguments: Arguments, of: int) -> int:
        """How many rows the arguments of a part of a call with `of` rows have."""
        leaves, _ = self.flatten(arguments, of)
        return next((len(leaf) for leaf, rows in zip(leaves, self.has_rows, strict=True) if rows), of)


@dataclass
class Splitter:
    """Tells which arguments of modules have rows, and remembers it for calls whose shapes do not tell.

    Attributes:
        shared: names of the denoiser's arguments that all requests share, whatever their shapes; None: their shapes tell.
        units_apart: a unit inside the denoiser could not be split by rows: runs with sites inside compute by themselves.
    """

    shared: frozenset[str] | None = None
    units_apart: bool = False
    _known: dict[tuple[int, int, int], bool] = field(default_factory=dict)

    def form(
        self,
        key: int,
        arguments: Arguments,
        total: int,
        *,
        listed: bool = False,
        named: Sequence[tuple[str, Tensor]] = (),
    ) -> Form:
        """How the arguments of a call with so many rows are taken apart.

        Args:
            key: the module's identity.
            arguments: of the call.
            total: number of its rows.
            listed: samples are items of lists.
            named: its tensors by path, for `shared` and for what is said of one that cannot be taken apart.

        Raises:
            IndivisibleError: shapes do not tell.
        """
        leaves, _ = _flattened(arguments, total if listed else None)
        names = self.shared or frozenset()
        shared = {id(t) for path, t in named if path in names or path.split(".")[0] in names}
        tokens = {leaf.shape[1] for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim == 3}
        has_rows = []
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor):
                has_rows.append(isinstance(leaf, (list, tuple)))
            elif id(leaf) in shared or (listed and leaf.ndim != 1):
                has_rows.append(False)
            else:
                found = self._has_rows((key, len(leaves), i), leaf, total, crowded=total in tokens)
                if found is None:
                    raise IndivisibleError(_sentence(leaf, total, named))
                has_rows.append(found)
        return Form(total, has_rows, listed)

    def form_of_one(self, arguments: Arguments, total: int) -> Form:
        """The form of a call that belongs to one request: nothing is taken apart."""
        leaves, _ = _flattened(arguments, None)
        has_rows = [isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == total for leaf in leaves]
        return Form(total, has_rows)

    def _has_rows(self, key: tuple[int, int, int], leaf: Tensor, total: int, *, crowded: bool) -> bool | None:
        if leaf.ndim == 0:
            return False
        fits = leaf.shape[0] == total
        if leaf.ndim == 1 or leaf.shape[0] == 1:
            return fits
        if leaf.ndim >= 3:
            return True if fits else None
        if self._known.get(key) is False:  # it was the same for all in a call with another number of rows
            return False
        if crowded and fits and self.shared is None:
            return self._known.get(key)
        self._known[key] = fits
        return fits


def divided(output: Any, form: Form, rows: Sequence[Ranges], given: Sequence[Sequence[Any]]) -> list[Any]:
    """What each request gets of a shared call's output.

    Args:
        output: what the module returned.
        form: of the call.
        rows: each request's.
        given: leaves of the arguments, first the call's, then each request's: the module may return some unchanged.

    Raises:
        IndivisibleError: a tensor of the output has not a row for each row of the call.
    """
    leaves, spec = form.flatten(output)
    places = {id(leaf): i for i, leaf in enumerate(given[0]) if isinstance(leaf, Tensor)}
    parts: list[list[Any]] = [[] for _ in rows]
    for leaf in leaves:
        place = places.get(id(leaf))
        for part, own, arguments in zip(parts, rows, given[1:], strict=True):
            if place is not None:
                part.append(arguments[place])
            elif (isinstance(leaf, Tensor) and leaf.ndim and leaf.shape[0] == form.total) or _is_list(leaf):
                part.append(_taken(leaf, own))
            elif isinstance(leaf, Tensor) and leaf.ndim:
                raise IndivisibleError(
                    f"an output of shape {tuple(leaf.shape)} has not a row for each of the {form.total} rows of the "
                    "call: requests cannot share calls of this denoiser."
                )
            else:
                part.append(leaf)
    return [pytree.tree_unflatten(part, spec) for part in parts]


def assembled(outputs: Sequence[Any], form: Form, rows: Sequence[Ranges]) -> Any:
    """A shared call's output, from what each request has of it."""
    if len(outputs) == 1:
        return outputs[0]
    flat = [form.flatten(output, count_of(own)) for output, own in zip(outputs, rows, strict=True)]
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return pytree.tree_unflatten([_ordered(column, rows) for column in columns], flat[0][1])


def _ordered(column: Sequence[Any], rows: Sequence[Ranges]) -> Any:
    """One leaf of the output: each request's rows where they belong."""
    first = column[0]
    if not (_is_list(first) or (isinstance(first, Tensor) and first.ndim)):
        return first
    if all(leaf is first for leaf in column):  # an argument that all share, returned unchanged
        return first
    pieces = []
    for leaf, own in zip(column, rows, strict=True):
        begin = 0
        for start, end in own:
            pieces.append((start, leaf[begin : begin + end - start]))
            begin += end - start
    pieces.sort(key=lambda piece: piece[0])
    return _concatenated([piece for _, piece in pieces])


def _flattened(value: Any, samples: int | None) -> tuple[list[Any], Any]:
    if samples is None:
        return pytree.tree_flatten(value)
    return pytree.tree_flatten(value, is_leaf=lambda item: _is_list(item) and len(item) == samples)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(isinstance(x, Tensor) for x in value)


def _taken(leaf: Any, rows: Ranges) -> Any:
    """Some rows of a tensor, a view where they lie together; or some items of a list."""
    pieces = [leaf[begin:end] for begin, end in rows]
    return pieces[0] if len(pieces) == 1 else _concatenated(pieces)


def _concatenated(pieces: Sequence[Any]) -> Any:
    if isinstance(pieces[0], Tensor):
        return torch.cat(list(pieces))
    items = [item for piece in pieces for item in piece]
    return items if isinstance(pieces[0], list) else tuple(items)


def _sentence(leaf: Tensor, total: int, named: Sequence[tuple[str, Tensor]]) -> str:
    name = next((path for path, tensor in named if tensor is leaf), "an argument")
    return (
        f"{name} of shape {tuple(leaf.shape)} does not tell which of the call's {total} rows it belongs to: give it a row for each, "
        f"serving(..., shared=({name!r},)) if all requests share it, or shared=() if no argument is shared."
    )
