"""Keys and values of the past in one attention, in blocks that are written once.

A block is what one chunk wrote. Its keys are as they were computed, and are turned only where they are read. In eight bits each token
and head has a scale of its own, so that tokens can be dropped without rounding the others again.

Dimensions: B samples, H heads, T tokens, D channels, G groups of heads that keep the same tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffcache.kernels.quantize import Quantized
from diffcache.rollouts.book import Book, joined
from diffcache.store.formats import Format, Ring, bytes_in_ring, values_of, weighted_sum
from diffcache.store.placement import Feature, Kept


@dataclass(frozen=True)
class TokenShape:
    """What a token's key and value look like.

    Attributes:
        batch, heads: B and H.
        channels, value_channels: D of keys and of values.
        dtype, device: of both.
    """

    batch: int
    heads: int
    channels: int
    value_channels: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, key: Tensor, value: Tensor) -> TokenShape:
        """That of [B, H, T, D]."""
        return cls(key.shape[0], key.shape[1], key.shape[-1], value.shape[-1], key.dtype, key.device)


class TokenBlocks:
    """Tensors [B, H, T, D] over tokens, stored block by block.

    Args:
        format: stores them, in as many bits and in that place.
        channels: D of each of them.
    """

    def __init__(self, format: Format, channels: Sequence[int]) -> None:
        self.format = format
        self.channels = tuple(channels)
        self.blocks: Ring = deque()
        self.lengths: list[int] = []

    @property
    def nbytes(self) -> int:
        return bytes_in_ring(self.blocks)

    @property
    def tokens(self) -> int:
        """T of all blocks together."""
        return sum(self.lengths)

    def write(self, tensors: Sequence[Tensor]) -> None:
        """Adds a block."""
        ring: Ring = deque(maxlen=1)
        # [B * T * H, 1, D]: a row, and so a scale, is a head of a token
        flat = [tensor.transpose(1, 2).reshape(-1, 1, tensor.shape[-1]) for tensor in tensors]
        self.format.push(ring, 0, [(tensor, None) for tensor in flat])
        self.blocks.append(ring[0])
        self.lengths.append(tensors[0].shape[2])

    def read(self, shape: TokenShape) -> list[Tensor]:
        """Every tensor, of all tokens."""
        features, _ = self.format.read(self.blocks, [1.0] * len(self.blocks))
        tensors = []
        for i, channels in enumerate(self.channels):
            parts = [
                weighted_sum([feature[i]], [1.0])
                .to(shape.dtype)
                .view(shape.batch, length, shape.heads, channels)
                for feature, length in zip(features, self.lengths, strict=True)
            ]
            whole = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
            tensors.append(whole.transpose(1, 2))
        return tensors

    def choose(self, index: Tensor, shape: TokenShape) -> None:
        """Keeps some tokens. Blocks before the first that changes, and after the last, stay as they are.

        Args:
            index: which, int64 [B, G, n], ascending, on the CPU.
            shape: of a token.
        """
        starts = torch.tensor([0, *self.lengths]).cumsum(0)
        before, after = self._untouched(index, starts)
        count = len(self.lengths) - before - after
        if count == 0:
            return
        low, high = int(starts[before]), int(starts[before + count])
        inside = index[..., low : index.shape[-1] - (int(starts[-1]) - high)] - low
        features = self.format.memory.get(self.blocks, len(self.blocks))[before : before + count]
        merged = self._merged(features, self.lengths[before : before + count], inside, shape)
        blocks = list(self.blocks)
        new, length = ([merged], [inside.shape[-1]]) if inside.shape[-1] else ([], [])
        self.blocks.clear()
        self.blocks.extend([*blocks[:before], *new, *blocks[before + count :]])
        self.lengths[before : before + count] = length

    def clear(self) -> None:
        self.blocks.clear()
        self.lengths.clear()

    def _untouched(self, index: Tensor, starts: Tensor) -> tuple[int, int]:
        """How many of the first and of the last blocks keep all of their tokens."""
        total, kept = int(starts[-1]), index.shape[-1]
        before = after = 0
        for end in starts[1:].tolist():
            if kept < end or not bool((index[..., :end] == torch.arange(end)).all()):
                break
            before += 1
        for start in starts[:-1].flip(0).tolist():
            length = total - start
            whole = torch.arange(start, total)
            if (
                before + after == len(self.lengths)
                or kept < length
                or bool((index[..., kept - length :] != whole).any())
            ):
                break
            after += 1
        return before, after

    def _merged(
        self, features: Sequence[Feature], lengths: Sequence[int], index: Tensor, shape: TokenShape
    ) -> Feature:
        """One block of some tokens of several, with the same rounding as before."""
        device = values_of(features[0].tensors[0]).device
        heads = torch.arange(shape.heads)[:, None]
        samples = torch.arange(shape.batch)[:, None, None]
        chosen = index.expand(shape.batch, shape.heads, -1)
        rows = ((samples * sum(lengths) + chosen) * shape.heads + heads).transpose(1, 2).flatten().to(device)
        tensors: list[Kept] = []
        for i in range(len(self.channels)):
            parts = [feature.tensors[i] for feature in features]

            def picked(select: Callable[[Kept], Tensor], parts: Sequence[Kept] = parts) -> Tensor:
                of_blocks = [
                    select(part).reshape(shape.batch, length * shape.heads, -1)
                    for part, length in zip(parts, lengths, strict=True)
                ]
                return torch.cat(of_blocks, 1).flatten(0, 1).index_select(0, rows)

            values = picked(values_of).unsqueeze(1)
            whole = isinstance(parts[0], Tensor)
            tensors.append(values if whole else Quantized(values, picked(_scales)))
        return self.format.memory.put(Feature(0, tuple(tensors)))


class LayerHistory:
    """What one attention sees of the past.

    Args:
        format: stores keys, values and queries.
        shape: of a token.

    Attributes:
        book: of its tokens.
        rows: keys and values.
        queries: of the newest frames, where the policy wants them; `query_book` has their frames and places.
    """

    def __init__(self, format: Format, shape: TokenShape) -> None:
        self.shape = shape
        self.book = Book.empty()
        self.rows = TokenBlocks(format, (shape.channels, shape.value_channels))
        self.queries = TokenBlocks(format, (shape.channels,))
        self.query_book = Book.empty()

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and queries."""
        return self.rows.nbytes + self.queries.nbytes

    def write(self, key: Tensor, value: Tensor, book: Book) -> None:
        """Adds a chunk's."""
        self.rows.write((key, value))
        self.book = joined((self.book, book))

    def write_queries(self, query: Tensor, book: Book, since: int) -> None:
        """Adds a chunk's queries, and forgets those of frames before `since`."""
        self.queries.write((query,))
        self.query_book = joined((self.query_book, book))
        newest = (self.query_book.frame[0, 0] >= since).nonzero().flatten().expand(1, 1, -1)
        self.queries.choose(newest, self.shape)
        self.query_book = self.query_book.chosen(newest)

    def choose(self, index: Tensor) -> None:
        """Keeps some tokens: int64 [B, G, n], ascending, on the CPU."""
        self.rows.choose(index, self.shape)
        self.book = self.book.chosen(index)

    def clear(self) -> None:
        """Forgets everything."""
        self.rows.clear()
        self.queries.clear()
        self.book = self.query_book = Book.empty()


def bytes_per_token(shape: TokenShape, cache_dtype: torch.dtype | None, channels: int) -> int:
    """Bytes of one tensor of a token, of all samples and heads."""
    width = (cache_dtype or shape.dtype).itemsize
    scale = 4 if width == 1 else 0
    return shape.batch * shape.heads * (channels * width + scale)


def _scales(kept: Kept) -> Tensor:
    assert isinstance(kept, Quantized)
    return kept.scales
