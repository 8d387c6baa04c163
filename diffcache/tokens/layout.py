"""Where the picture's tokens stand in sequences: those of the picture alone, and those that hold text as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from diffcache.host.call import Call

WORTH_SPLITTING = 0.8
"""Samples with tokens of their own are computed apart where that is less than this share of computing the tokens of all in each."""


@dataclass(frozen=True, eq=False)
class TokenSequence:
    """A sequence that holds the picture's tokens.

    Attributes:
        length: of the sequence. What is no token of the picture is computed at every call: text, a reference that is no latent.
        places: where the picture's tokens stand, int64 [tokens], in order, on the CPU.
    """

    length: int
    places: Tensor

    def index(self, rows: Tensor) -> Tensor:
        """The positions that are computed: some of the picture's tokens, and everything else.

        Args:
            rows: which of the picture's tokens, int64 [n], sorted.
        """
        chosen = torch.ones(self.length, dtype=torch.bool)
        chosen[self.places] = False
        chosen[self.places[rows.cpu()]] = True
        return chosen.nonzero().flatten().to(rows.device)


@dataclass(frozen=True)
class TokenLayout:
    """The sequences of one denoiser call, by length."""

    sequences: Mapping[int, TokenSequence]

    @property
    def count(self) -> int:
        """The number of the picture's tokens."""
        return len(next(iter(self.sequences.values())).places)

    def extended(self, sequence: TokenSequence) -> TokenLayout:
        """The layout with another sequence."""
        return TokenLayout({**self.sequences, sequence.length: sequence})

    def orders(self, length: int) -> list[TokenSequence]:
        """What a longer sequence may be: text and then the picture, or the picture and then text."""
        known = next(iter(self.sequences.values()))
        more = length - known.length
        if more < 0:
            return []
        return [TokenSequence(length, known.places + shift) for shift in dict.fromkeys((more, 0))]


@dataclass(frozen=True, eq=False)
class SampleRows:
    """The tokens that some samples of a batch compute.

    Attributes:
        rows: of each of them.
        samples: which of the batch; None: all.
    """

    rows: Rows
    samples: tuple[int, ...] | None = None

    def of(self, tensor: Tensor, batch: int) -> Tensor:
        """These samples' part of a tensor; one that has not a row for each sample is the same for all."""
        if self.samples is None or tensor.ndim < 3 or tensor.shape[0] != batch:
            return tensor
        return tensor.index_select(0, torch.tensor(self.samples, device=tensor.device))

    def of_kept(
        self, kept: tuple[Tensor, Tensor, Tensor | None], batch: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """These samples' keys, values and mask."""
        key, value, mask = kept
        return self.of(key, batch), self.of(value, batch), None if mask is None else self.of(mask, batch)

    def of_call(self, call: Call) -> Call:
        """A call of these samples."""
        return call if self.samples is None else Call(call.signature, *call.rows([*self.samples]))


class Rows:
    """Some of the picture's tokens, as positions in each sequence.

    Args:
        rows: which, int64 [n], sorted, on the denoiser's device.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self._indices: dict[TokenSequence, Tensor] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def index(self, sequence: TokenSequence) -> Tensor:
        """The positions in a sequence that are computed, int64."""
        if sequence not in self._indices:
            self._indices[sequence] = sequence.index(self.rows)
        return self._indices[sequence]


def rows_of_samples(chosen: Tensor, *, apart: bool) -> list[SampleRows]:
    """What a batch computes: each sample's own tokens, or those of all samples in each, where that is hardly more.

    Args:
        chosen: bool [samples, tokens], or [1, tokens] where samples share theirs. Where nothing is chosen, one token is.
        apart: the samples can be computed apart.
    """
    together = [SampleRows(_numbered(chosen.any(0)))]
    if not apart:
        return together
    different, which = torch.unique(chosen, dim=0, return_inverse=True)
    each = [
        SampleRows(_numbered(own), tuple((which == i).nonzero().flatten().tolist()))
        for i, own in enumerate(different)
    ]
    own = sum(len(one.rows) * len(one.samples) for one in each if one.samples is not None)
    return each if len(each) > 1 and own < WORTH_SPLITTING * len(together[0].rows) * len(chosen) else together


def _numbered(chosen: Tensor) -> Rows:
    rows = chosen.nonzero().flatten()
    return Rows(rows if len(rows) else rows.new_zeros(1))
