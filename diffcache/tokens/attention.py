"""Attention policies for some tokens: one lists the attentions of a call, the other adds keys and values of the tokens that are not computed."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from diffcache.hooks.attention_calls import AttentionCall
from diffcache.tokens.layout import Rows, TokenSequence

KeysAndValues = tuple[Tensor, Tensor]


class Listening:
    """Computes every attention as it is, and lists what they were."""

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def attend(self, call: AttentionCall) -> Tensor:
        self.calls.append(call)
        return call.compute()


class Strayed(Exception):
    """A unit attends otherwise than it did when it was learned."""


class Completing:
    """Adds the keys and values of the tokens that are not computed.

    Args:
        rows: the tokens that are computed.
        sequences: of each attention, in order, that of its keys; None where all keys are computed.
        kept: the keys and values of all tokens, and the mask, of an attention by its index.
    """

    def __init__(
        self,
        rows: Rows,
        sequences: tuple[TokenSequence | None, ...],
        kept: Callable[[int], tuple[Tensor, Tensor, Tensor | None]],
    ) -> None:
        self.rows = rows
        self.sequences = sequences
        self.kept = kept
        self._next = 0

    def attend(self, call: AttentionCall) -> Tensor:
        if self._next >= len(self.sequences):
            raise Strayed
        i, sequence = self._next, self.sequences[self._next]
        self._next += 1
        if sequence is None:
            return call.compute()
        key, value, mask = self.kept(i)
        return completed(call, sequence, self.rows, (key, value), mask)


def completed(
    call: AttentionCall, sequence: TokenSequence, rows: Rows, kept: KeysAndValues, mask: Tensor | None
) -> Tensor:
    """An attention of some tokens on all of them.

    Args:
        call: on the computed tokens alone.
        sequence: of all keys.
        rows: the tokens that are computed.
        kept: keys and values of all tokens; they are written to.
        mask: as it was when all tokens were computed.
    """
    index = rows.index(sequence)
    if call.key.shape[-2] != len(index):
        raise Strayed
    key = kept[0].index_copy_(-2, index, call.key)
    value = kept[1].index_copy_(-2, index, call.value)
    if mask is not None and mask.ndim >= 2 and mask.shape[-2] not in (1, call.query.shape[-2]):
        mask = mask.index_select(-2, index)
    return call.with_keys(key, value, mask).compute()
