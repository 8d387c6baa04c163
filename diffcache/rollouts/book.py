"""What is known of each token whose key and value are kept.

Dimensions: B samples, G groups of heads that keep the same tokens (1, or one for each head), T tokens. All tensors are on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Book:
    """Of one layer.

    Attributes:
        frame: of the video that a token belongs to; of a next-scale model the scale. int64 [B, G, T], ascending.
        place: temporal position at which its key was computed, int64 [B, G, T].
        mass: how relevant it was when it was last chosen, fp32 [B, G, T]; NaN where it never had to be.
    """

    frame: Tensor
    place: Tensor
    mass: Tensor

    @classmethod
    def of_chunk(cls, frame: Tensor, place: Tensor, batch: int) -> Book:
        """Of a chunk that has just been computed.

        Args:
            frame, place: of its tokens, int64 [T].
            batch: B.
        """
        shape = (batch, 1, len(frame))
        return cls(frame.expand(shape).clone(), place.expand(shape).clone(), torch.full(shape, torch.nan))

    @classmethod
    def empty(cls) -> Book:
        """Of nothing."""
        none = torch.zeros(1, 1, 0, dtype=torch.int64)
        return cls(none, none, none.float())

    @property
    def tokens(self) -> int:
        """T."""
        return self.frame.shape[-1]

    def chosen(self, index: Tensor) -> Book:
        """Of some of the tokens.

        Args:
            index: which, int64 [B, G, n]; its B and G may differ from the book's where one of the two is 1.
        """
        return Book(*(_gathered(part, index) for part in (self.frame, self.place, self.mass)))

    def weighed(self, mass: Tensor) -> Book:
        """The same with another mass, fp32 [B, G, T]; NaN leaves a token's as it is."""
        before = self.mass.expand(mass.shape)
        grown = Book(*(part.expand(mass.shape) for part in (self.frame, self.place, self.mass)))
        return replace(grown, mass=torch.where(mass.isnan(), before, mass))


def joined(books: Sequence[Book]) -> Book:
    """Of the tokens of several books, one after the other."""
    filled = [book for book in books if book.tokens]
    if not filled:
        return Book.empty()
    groups = max(book.frame.shape[1] for book in filled)
    batch = max(book.frame.shape[0] for book in filled)

    def cat(name: str) -> Tensor:
        return torch.cat([getattr(book, name).expand(batch, groups, -1) for book in filled], -1)

    return Book(cat("frame"), cat("place"), cat("mass"))


def _gathered(values: Tensor, index: Tensor) -> Tensor:
    batch, groups = (max(values.shape[dim], index.shape[dim]) for dim in (0, 1))
    return values.expand(batch, groups, -1).gather(-1, index.expand(batch, groups, -1))
