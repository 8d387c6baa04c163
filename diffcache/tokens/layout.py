"""Where the picture's tokens stand in sequences: those of the picture alone, and those that hold text as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


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
