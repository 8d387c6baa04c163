"""Formats: how stored features lie in memory. Stores ask them; nobody else needs to know."""

import math
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, starmap
from typing import Any

import torch
from torch import Tensor

from diffcache.kernels.dispatch import FP8
from diffcache.kernels.extrapolate import extrapolate
from diffcache.kernels.quantize import LARGEST, MAX_ROW, Quantized, quantize_feature
from diffcache.kernels.residual import Residual, keep_residual, store_residual, wide
from diffcache.store.placement import DeviceMemory, Feature, Kept

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8, "float8": FP8}
"""What `cache_dtype=` may name."""

SHARED = 256
"""As many elements share a scale, where rows are shorter: four bytes for each 256."""

Ring = deque[Feature]
"""Newest first, with a largest length."""

Pair = tuple[Tensor, Tensor | None]
"""An output, and the base that it is stored as a residual to, if any."""


class Format:
    """Each feature is stored alone.

    Args:
        dtype: what features are rounded to. None: not at all, and a residual is one precision wider.
        memory: where they lie.

    Attributes:
        as_is: what lies in a ring is what is read from it.
    """

    def __init__(self, dtype: torch.dtype | None = None, memory: DeviceMemory | None = None) -> None:
        self.dtype = dtype
        self.memory = memory or DeviceMemory()
        self.as_is = type(self) is Format and not self.memory.on_host
        self._keep: Callable[[Tensor, Tensor | None], Kept] = (
            keep_residual if dtype is None else partial(store_residual, dtype=dtype)
        )

    def push(self, ring: Ring, tick: int, pairs: Sequence[Pair]) -> None:
        """Makes what was computed at a tick the ring's newest feature. It shares no memory with the pairs."""
        if len(ring) == ring.maxlen:
            ring.pop()  # before the new one is made: its memory can be used again
        feature = Feature(tick, tuple(starmap(self._keep, pairs)))
        ring.appendleft(
            self.memory.put(feature) if self.memory.on_host else feature
        )  # a call less at every site

    def read(self, ring: Ring, weights: Sequence[float]) -> tuple[list[tuple[Kept, ...]], list[float]]:
        """Tensors and weights whose weighted sum is that of the ring's newest features with the given weights."""
        features = self.memory.get(ring, len(weights))
        return [feature.tensors for feature in features], list(weights)


class EightBits(Format):
    """Eight bits: the oldest feature as it is, and of each newer one its difference to the one before it.

    Predictors multiply the newest feature by 2 and more, and its rounding error with it. A difference is much smaller than
    a feature, and so is its rounding error. What remains is the oldest feature's error, whose weight is 1. Reading costs
    nothing more: a weighted sum of features is a sum of differences with other weights.

    Args:
        dtype: torch.int8 or torch.float8_e4m3fn.
        memory: where it lies.
    """

    dtype: torch.dtype

    def push(self, ring: Ring, tick: int, pairs: Sequence[Pair]) -> None:
        past = self.memory.get(ring, len(ring))
        ticks = [tick, *(feature.tick for feature in past)][: ring.maxlen]
        try:
            streams = [
                self._coded(pair, [feature.tensors[i] for feature in past], ring.maxlen or 1)
                for i, pair in enumerate(pairs)
            ]
        except BaseException as error:
            forget_on_error(past, error)
            raise
        ring.clear()
        for feature in zip(ticks, zip(*streams, strict=True), strict=True):
            ring.append(self.memory.put(Feature(*feature)))

    def read(self, ring: Ring, weights: Sequence[float]) -> tuple[list[tuple[Kept, ...]], list[float]]:
        padded = [*weights, *[0.0] * (len(ring) - len(weights))]
        features, _ = super().read(ring, padded)
        return [tuple(_by_row(kept) for kept in feature) for feature in features], list(accumulate(padded))

    def _coded(self, pair: Pair, past: Sequence[Kept], depth: int) -> list[Kept]:
        """One stream of the ring, newest first."""
        output, base = pair
        if not output.is_floating_point():
            return [store_residual(output, None), *past][:depth]
        if depth == 1:
            return [self._rounded(output, base)]
        values = [store_residual(output, base, torch.float32), *_summed(past)][:depth]
        coded: list[Kept] = []
        total: Tensor | None = None
        for value in reversed(values):
            coded.append(self._rounded(value, total))
            rounded = [_by_row(coded[-1])]
            total = extrapolate(
                rounded, [1.0], total, torch.float32
            )  # the next difference includes this one's error
        return coded[::-1]

    def _rounded(self, output: Tensor, base: Tensor | None) -> Kept:
        """output - base. What has no rows that a scale could serve is not rounded."""
        if output.numel() == 0 or output.ndim < 2 or output.shape[-1] > MAX_ROW:
            return store_residual(output, base, torch.float32)
        rows = (-1, _row_length(output.shape))
        joined = None if base is None else base.reshape(rows)
        values, scales = quantize_feature(output.reshape(rows), joined, self.dtype)
        return Quantized(values.view(output.shape), scales)


def forget_on_error(past: list[Any], error: BaseException) -> None:
    """Empties a list of features, and the frames that an error left: a traceback that somebody keeps keeps their locals."""
    past.clear()
    traceback.clear_frames(error.__traceback__)


def format_of(cache_dtype: str | None, memory: DeviceMemory | None = None) -> Format:
    """By name: one of DTYPES, or None for as computed."""
    dtype = None if cache_dtype is None else DTYPES[cache_dtype]
    return EightBits(dtype, memory) if dtype in LARGEST else Format(dtype, memory)


def bytes_in_ring(ring: Ring) -> int:
    """That its features take."""
    return sum(kept.nbytes for feature in ring for kept in feature.tensors)


def values_of(kept: Kept) -> Tensor:
    """The tensor that has the feature's shape."""
    match kept:
        case Quantized():
            return kept.values
        case Residual():
            return kept.both[0]
        case _:
            return kept


def plain(past: Sequence[Kept], weights: Sequence[float]) -> Tensor:
    """The weighted sum of what was read of one stream."""
    if isinstance(past[0], Residual):
        return extrapolate(past, weights, None, wide(past[0].both))
    newest = values_of(past[0])
    if isinstance(past[0], Tensor) and (len(past) == 1 or not newest.is_floating_point()):
        return newest
    return extrapolate(past, weights, None, torch.float32)


def _summed(past: Sequence[Kept]) -> list[Tensor]:
    """The features, of their differences; newest first."""
    total: Tensor | None = None
    values = []
    for kept in reversed(past):
        total = extrapolate([_by_row(kept)], [1.0], total, torch.float32)
        values.append(total)
    return values[::-1]


def _row_length(shape: Sequence[int]) -> int:
    """How many elements share a scale: a token's channels; shorter rows are joined, inside one sample."""
    wanted = 1 << (max(SHARED // shape[-1], 1).bit_length() - 1)
    return shape[-1] * math.gcd(math.prod(shape[1:-1]), wanted)


def _by_row(kept: Kept) -> Kept:
    """With a scale for each row of the last dimension."""
    if not isinstance(kept, Quantized):
        return kept
    values, scales = kept
    joined = values.numel() // values.shape[-1] // len(scales)
    return Quantized(values, scales.expand(-1, joined).reshape(*values.shape[:-1], 1))
