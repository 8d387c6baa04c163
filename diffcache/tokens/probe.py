"""The probe of one unit: it is called with some tokens of a call that has been computed in full, and must say the same of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from diffcache.hooks.attention_calls import AttentionCall, AttentionCalls
from diffcache.host.call import Call
from diffcache.tokens.attention import Completing, Strayed, completed
from diffcache.tokens.closeness import error_of
from diffcache.tokens.layout import Rows, SampleRows, TokenLayout, TokenSequence
from diffcache.tokens.rules import Cut, Gathered, Stream, UnitRule, candidates, outputs_cut

EPSILONS = 8
"""The identity holds within so many roundings of the tensors' dtype, as a fraction of the largest entry."""

MOST_RULES = 40
"""So many rules are tried for a unit."""

NO_TOKENS = "none of its arguments holds the picture's tokens in a dimension of their number"
OTHERS_DIFFER = "its keys change with which tokens are computed: it mixes tokens beside attention"
DIFFERS = (
    "on some of the tokens it returns something else than on all of them ({error:.1e} of the largest entry)"
)
FAILS = "it cannot be called with some of the tokens ({error})"
UNTOLD = "where its output holds the tokens cannot be told"


class Unlike(Exception):
    """The unit did something that no rule explains."""


@dataclass(frozen=True)
class Computed:
    """A unit's call on all tokens: its arguments, what it returned, and its attentions."""

    call: Call
    output: Any
    attentions: Sequence[AttentionCall]


@dataclass(frozen=True)
class Probed:
    """What a probe found.

    Attributes:
        rule: how the unit computes some tokens; None if it cannot.
        layout: with the sequences that were found with the rule.
        reason: why not.
        error: of the identity, a fraction of the largest entry; 0.0 to the bit.
    """

    rule: UnitRule | None
    layout: TokenLayout
    reason: str | None = None
    error: float = 0.0


class _Finding:
    """Finds the sequence of each attention's keys, by comparing keys of some tokens with those of all."""

    def __init__(self, rows: Rows, full: Sequence[AttentionCall], layout: TokenLayout) -> None:
        self.rows = rows
        self.full = full
        self.layout = layout
        self.found: list[TokenSequence | None] = []

    def attend(self, call: AttentionCall) -> Tensor:
        i = len(self.found)
        if i >= len(self.full):
            raise Unlike(OTHERS_DIFFER)
        whole = self.full[i]
        if call.key.shape == whole.key.shape:
            self.found.append(None)
            return call.compute()
        sequence = self._sequence_of(whole, call)
        if sequence is None:
            raise Unlike(OTHERS_DIFFER)
        self.found.append(sequence)
        kept = whole.key.clone(), whole.value.clone()
        return completed(call, sequence, self.rows, kept, whole.mask)

    def _sequence_of(self, whole: AttentionCall, some: AttentionCall) -> TokenSequence | None:
        length = whole.key.shape[-2]
        known = self.layout.sequences.get(length)
        for sequence in [known] if known is not None else self.layout.orders(length):
            index = self.rows.index(sequence)
            same = whole.key.index_select(-2, index)
            if same.shape == some.key.shape and error_of(same, some.key) <= tolerance(some.key.dtype):
                return sequence
        return None


def tolerance(dtype: torch.dtype) -> float:
    """Of the identity, a fraction of the largest entry."""
    return EPSILONS * torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


def probed(
    unit: Callable[..., Any],
    computed: Computed,
    layout: TokenLayout,
    rows: Rows,
    before: Sequence[Stream] = (),
) -> Probed:
    """Looks for the rule by which a unit computes some tokens as it computes all of them.

    Args:
        unit: its forward.
        computed: its call on all tokens.
        layout: the sequences that are known.
        rows: some of the tokens.
        before: what the unit before it returned.
    """
    reason = NO_TOKENS
    for i, (cuts, possible) in enumerate(islice(candidates(computed.call, layout, before), MOST_RULES)):
        found = _tried(unit, computed, cuts, possible, rows)
        if found.rule is not None:
            return found
        reason = found.reason if i == 0 and found.reason is not None else reason
    return Probed(None, layout, reason)


def _tried(
    unit: Callable[..., Any], computed: Computed, cuts: dict[str, Cut], layout: TokenLayout, rows: Rows
) -> Probed:
    finding = _Finding(rows, computed.attentions, layout)
    args, kwargs = Gathered(rows).arguments(cuts, computed.call)
    try:
        with AttentionCalls(finding):
            some = unit(*args, **kwargs)
    except Unlike as unlike:
        return Probed(None, layout, str(unlike))
    except (RuntimeError, ValueError, IndexError, AssertionError, TypeError) as error:
        return Probed(
            None, layout, FAILS.format(error=str(error).splitlines()[0][:90] if str(error) else "error")
        )
    for sequence in finding.found:
        if sequence is not None and sequence.length not in layout.sequences:
            layout = layout.extended(sequence)
    whole_leaves, some_leaves = pytree.tree_leaves(computed.output), pytree.tree_leaves(some)
    outputs = outputs_cut(whole_leaves, some_leaves, layout)
    if outputs is None or len(finding.found) != len(computed.attentions):
        return Probed(None, layout, UNTOLD)
    differs = largest_error(whole_leaves, some_leaves, outputs, rows)
    dtypes = [leaf.dtype for leaf in some_leaves if isinstance(leaf, Tensor)]
    if differs > max(map(tolerance, dtypes), default=0.0):
        return Probed(None, layout, DIFFERS.format(error=differs))
    return Probed(UnitRule(cuts, outputs, tuple(finding.found)), layout, None, differs)


def is_apart(unit: Callable[..., Any], computed: Computed, rule: UnitRule, rows: Rows) -> bool:
    """Whether a unit computes some tokens of the last sample alone as it computes them beside the other samples."""
    batch, whole = computed.call.batch, pytree.tree_leaves(computed.output)
    leaves = [leaf for leaf in whole if isinstance(leaf, Tensor)]
    if {len(leaf) for leaf in leaves} | {len(each.key) for each in computed.attentions} != {batch}:
        return False
    last = SampleRows(rows, (batch - 1,))

    def kept(i: int) -> tuple[Tensor, Tensor, Tensor | None]:
        full = computed.attentions[i]
        return last.of_kept((full.key, full.value, full.mask), batch)

    args, kwargs = Gathered(rows).arguments(rule.arguments, last.of_call(computed.call))
    try:
        with AttentionCalls(Completing(rows, rule.attentions, kept)):
            some = pytree.tree_leaves(unit(*args, **kwargs))
    except (Strayed, RuntimeError, ValueError, IndexError, AssertionError, TypeError):
        return False
    alone = [last.of(leaf, batch) if isinstance(leaf, Tensor) else leaf for leaf in whole]
    return largest_error(alone, some, rule.outputs, rows) <= max(tolerance(leaf.dtype) for leaf in leaves)


def largest_error(whole: Sequence[Any], some: Sequence[Any], cuts: Sequence[Cut | None], rows: Rows) -> float:
    """By how much an output of some tokens differs from that of all."""
    errors = [0.0]
    for full, part, cut in zip(whole, some, cuts, strict=True):
        if isinstance(full, Tensor) and isinstance(part, Tensor):
            same = full if cut is None else full.index_select(cut.dim, rows.index(cut.sequence))
            errors.append(error_of(same, part))
    return max(errors)
