"""Gather rules: how a unit is called with some of the tokens, and how what it returns is put back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from diffcache.host.call import Call
from diffcache.tokens.layout import Rows, SampleRows, TokenLayout, TokenSequence


@dataclass(frozen=True)
class Cut:
    """A tensor holds a sequence in one of its dimensions."""

    dim: int
    sequence: TokenSequence


@dataclass(frozen=True)
class UnitRule:
    """How a unit computes some of the tokens.

    Attributes:
        arguments: where tokens lie, by the argument's path.
        outputs: the same for each leaf of what it returns; None for a leaf without the picture's tokens.
        attentions: of each attention in it, in order, the sequence of its keys; None where all of them are computed.
    """

    arguments: Mapping[str, Cut]
    outputs: tuple[Cut | None, ...]
    attentions: tuple[TokenSequence | None, ...]

    def fits(self, call: Call) -> bool:
        """Whether a call has the tokens where the rule says."""
        return all(
            path in call.tensors
            and call.tensors[path].ndim > cut.dim
            and call.tensors[path].shape[cut.dim] == cut.sequence.length
            for path, cut in self.arguments.items()
        )


class Gathered:
    """Takes some of the tokens out of arguments. What one unit after another is given (positions) is gathered once.

    Args:
        rows: the tokens.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._known: dict[tuple[int, Cut], tuple[Tensor, Tensor]] = {}  # of the unit before

    def arguments(self, cuts: Mapping[str, Cut], call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a unit for some of the tokens."""
        taken = {
            (id(call.tensors[path]), cut): self._taken(call.tensors[path], cut) for path, cut in cuts.items()
        }
        self._known = taken
        replaced = {identity: part for (identity, _), (_, part) in taken.items()}
        args, kwargs = pytree.tree_map_only(
            Tensor, lambda leaf: replaced.get(id(leaf), leaf), (call.args, call.kwargs)
        )
        return args, kwargs

    def _taken(self, tensor: Tensor, cut: Cut) -> tuple[Tensor, Tensor]:
        """A tensor, which is kept so that its address stays its own, and its part."""
        known = self._known.get((id(tensor), cut))
        return known or (tensor, tensor.index_select(cut.dim, self.rows.index(cut.sequence)))


def put_back(computed: Any, rule: UnitRule, rows: Rows, onto: Mapping[int, Tensor]) -> Any:
    """What a unit returned of some tokens, as it is for all of them.

    Args:
        computed: what it returned.
        rule: the unit's.
        rows: which tokens were computed.
        onto: by the index of a leaf what the other tokens have; it is written to. Elsewhere they are zeros.
    """
    leaves, spec = pytree.tree_flatten(computed)
    whole = []
    for i, (leaf, cut) in enumerate(zip(leaves, rule.outputs, strict=True)):
        if cut is not None:
            others = onto.get(i)
            if others is None:
                shape = [*leaf.shape]
                shape[cut.dim] = cut.sequence.length
                others = leaf.new_zeros(shape)
            leaf = others.index_copy_(cut.dim, rows.index(cut.sequence), leaf)
        whole.append(leaf)
    return pytree.tree_unflatten(whole, spec)


def joined(parts: Sequence[Any], rows: Sequence[SampleRows]) -> Any:
    """What a unit returned of some samples after others, as it is for the batch."""
    if len(parts) == 1:
        return parts[0]
    order = torch.tensor([i for one in rows for i in one.samples or ()]).argsort()
    flat = [pytree.tree_flatten(part) for part in parts]
    leaves = [
        torch.cat(each).index_select(0, order.to(each[0].device)) if isinstance(each[0], Tensor) else each[0]
        for each in zip(*(leaves for leaves, _ in flat), strict=True)
    ]
    return pytree.tree_unflatten(leaves, flat[0][1])


Stream = tuple[Tensor, Cut]
"""What a unit returned, and where it holds the picture's tokens."""


def candidates(
    call: Call, layout: TokenLayout, before: Sequence[Stream] = ()
) -> Iterator[tuple[dict[str, Cut], TokenLayout]]:
    """Rules for a unit's arguments, the likeliest first.

    Arguments of one list and shape (cosines and sines) are treated alike. First all are treated in the likeliest way, in each
    possible layout; then one is treated otherwise, then two.

    Args:
        call: of the unit.
        layout: the sequences that are known.
        before: what the unit before it returned; in a longer sequence its tokens are looked for.
    """
    layouts = [
        layout.extended(each)
        for length in _longer(call, layout)
        for each in _orders(call, length, layout, before)
    ]
    if layout.count not in layout.sequences and any(layout.count in t.shape for t in call.tensors.values()):
        layouts.append(layout.extended(TokenSequence(layout.count, torch.arange(layout.count))))
    choices = [(possible, _ways_of_all(call, possible)) for possible in [*layouts, layout]]
    for others in range(3):
        for possible, ways in choices:
            alternatives = [(alike, i) for alike, found in ways.items() for i in range(1, len(found))]
            for changed in combinations(alternatives, others):
                chosen = dict.fromkeys(ways, 0) | dict(changed)
                cuts = {path: ways[alike][i] for alike, i in chosen.items() for path in alike}
                rule = {path: cut for path, cut in cuts.items() if cut is not None}
                if rule and len(dict(changed)) == others:
                    yield rule, possible


def outputs_cut(
    whole: Sequence[Any], some: Sequence[Any], layout: TokenLayout
) -> tuple[Cut | None, ...] | None:
    """Where an output holds tokens, from what a unit returned of all tokens and of some; None if it cannot be told."""
    if len(whole) != len(some):
        return None
    cuts: list[Cut | None] = []
    for full, part in zip(whole, some, strict=True):
        if not isinstance(full, Tensor) or not isinstance(part, Tensor) or full.shape == part.shape:
            cuts.append(None)
            continue
        if full.ndim != part.ndim:
            return None
        dims = [dim for dim in range(full.ndim) if full.shape[dim] != part.shape[dim]]
        if len(dims) != 1 or full.shape[dims[0]] not in layout.sequences:
            return None
        cuts.append(Cut(dims[0], layout.sequences[full.shape[dims[0]]]))
    return tuple(cuts)


def _orders(call: Call, length: int, layout: TokenLayout, before: Sequence[Stream]) -> list[TokenSequence]:
    """What a longer sequence may be. Where it begins or ends with what the unit before returned, that tells the order."""
    orders = layout.orders(length)
    streams = [t for t in call.tensors.values() if t.ndim == 3 and t.shape[1] == length]
    for stream in streams:
        for tensor, cut in before:
            known = tensor.index_select(cut.dim, cut.sequence.places.to(tensor.device))
            for order in orders if tensor.ndim == 3 and cut.dim == 1 else ():
                if torch.equal(stream.index_select(1, order.places.to(stream.device)), known):
                    return [order]
    return orders


def _longer(call: Call, layout: TokenLayout) -> list[int]:
    """Lengths that are not known, and could be those of the picture's tokens and others together."""
    streams = {t.shape[1] for t in call.tensors.values() if t.ndim == 3 and t.is_floating_point()}
    joint = {length for length in streams if length > layout.count}
    joint |= {known + other for known in layout.sequences for other in streams}
    sizes = Counter(
        size for t in call.tensors.values() for size in (t.shape if t.ndim == 2 else t.shape[:-1])
    )
    return [size for size, _ in sizes.most_common() if size in joint and size not in layout.sequences]


def _ways_of_all(call: Call, layout: TokenLayout) -> dict[tuple[str, ...], list[Cut | None]]:
    """How arguments may hold the picture's tokens, by the paths of those that are alike."""
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for path, tensor in call.tensors.items():
        stem = path.rstrip("0123456789") if path[-1].isdigit() and "." in path else path
        alike.setdefault((stem, tuple(tensor.shape)), []).append(path)
    ways = {
        tuple(paths): _ways(paths[0], call.tensors[paths[0]], call.batch, layout) for paths in alike.values()
    }
    return {paths: found for paths, found in ways.items() if found != [None]}


def _ways(path: str, tensor: Tensor, batch: int, layout: TokenLayout) -> list[Cut | None]:
    """How a tensor may hold the picture's tokens, the likeliest first; None: it does not.

    The first dimension of three or more is the batch, most often. A floating tensor of two, [batch, channels], holds a time.
    """
    dims = [*range(1, tensor.ndim), 0] if tensor.ndim >= 3 else [*range(tensor.ndim)]
    found = ((dim, layout.sequences.get(tensor.shape[dim])) for dim in dims)
    cuts: list[Cut | None] = [Cut(dim, sequence) for dim, sequence in found if sequence is not None]
    channels = tensor.ndim - 1 if tensor.is_floating_point() and tensor.ndim >= 2 else tensor.ndim
    likely = [cut for cut in cuts if cut is not None and cut.dim != channels]
    if tensor.ndim == 2 and tensor.is_floating_point() and tensor.shape[0] in (1, batch):
        likely = []
    is_text = "encoder" in path or "context" in path
    return (
        [None, *cuts]
        if is_text or not likely
        else [*likely, None, *(cut for cut in cuts if cut not in likely)]
    )
