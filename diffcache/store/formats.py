"""Formats: in how many bits features are stored, and how they are read back. Only stores use them."""

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
"""The values of the option `cache_dtype`."""

_NARROWER = {None: ("bfloat16", "int8"), "bfloat16": ("int8",), "float16": ("int8",)}
"""Of the values of `cache_dtype`: each takes about half of the bytes of the one before, or less."""

SHARED = 256
"""Where rows are shorter than this, several of them share a scale, up to this many elements."""

Ring = deque[Feature]
"""Features, newest first; `maxlen` is set."""

Pair = tuple[Tensor, Tensor | None]
"""An output, and the base to which it is stored as a residual; None: it is stored itself."""


class Format:
    """Stores each feature by itself.

    Args:
        dtype: features are rounded to it. None: they are not rounded, so that a residual loses nothing.
        memory: where they are stored; None: on the device.

    Attributes:
        as_is: reading a ring gives the features in it as they are.
    """

    def __init__(self, dtype: torch.dtype | None = None, memory: DeviceMemory | None = None) -> None:
        self.dtype = dtype
        self.memory = memory or DeviceMemory()
        self.as_is = type(self) is Format and not self.memory.on_host
        self._keep: Callable[[Tensor, Tensor | None], Kept] = (
            keep_residual if dtype is None else partial(store_residual, dtype=dtype)
        )

    def push(self, ring: Ring, tick: int, pairs: Sequence[Pair]) -> None:
        """Stores what was computed at a tick as the ring's newest feature, in new memory."""
        if len(ring) == ring.maxlen:
            ring.pop()  # before the new one is made: its memory can be used again
        feature = Feature(tick, tuple(starmap(self._keep, pairs)))
        ring.appendleft(self.memory.put(feature) if self.memory.on_host else feature)  # saves a call

    def read(self, ring: Ring, weights: Sequence[float]) -> tuple[list[Sequence[Kept]], list[float]]:
        """Reads what predicts sum_j weights[j] * feature[j] over the ring's newest features.

        Returns:
            For each stored feature that is needed its tensors, and a weight for each: their weighted sum is that sum.
        """
        features = self.memory.get(ring, len(weights))
        return [feature.tensors for feature in features], list(weights)

    def reading(self, weights: Sequence[float]) -> list[float]:
        """The weights of what `read` gives for these weights, one for each feature that it gives."""
        return list(weights)


class EightBits(Format):
    """Stores the oldest feature of a ring in eight bits, and for each newer one its difference to the one before it.

    A predictor multiplies the newest feature by 2 or more, and its rounding error with it. A difference is much smaller
    than a feature, and so is its rounding error. What remains is the error of the oldest feature, whose weight is 1.
    Reading costs no more: a weighted sum of features is a sum of the differences with other weights.

    Args:
        dtype: torch.int8 or torch.float8_e4m3fn.
        memory: where the features are stored; None: on the device.
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
        for i, computed in enumerate(ticks):
            ring.append(self.memory.put(Feature(computed, tuple(stream[i] for stream in streams))))

    def read(self, ring: Ring, weights: Sequence[float]) -> tuple[list[Sequence[Kept]], list[float]]:
        padded = [*weights, *[0.0] * (len(ring) - len(weights))]
        features, _ = super().read(ring, padded)
        return [tuple(_by_row(kept) for kept in feature) for feature in features], self.reading(padded)

    def reading(self, weights: Sequence[float]) -> list[float]:
        return list(accumulate(weights))

    def _coded(self, pair: Pair, past: Sequence[Kept], depth: int) -> list[Kept]:
        """What the ring then holds of one stream, newest first."""
        output, base = pair
        if not output.is_floating_point():
            return [store_residual(output, None), *past][:depth]
        if depth == 1:
            return [self._rounded(output, base)]
        values = [store_residual(output, base, torch.float32), *_from_differences(past)][:depth]
        coded: list[Kept] = []
        total: Tensor | None = None
        for value in reversed(values):
            coded.append(self._rounded(value, total))
            rounded = [_by_row(coded[-1])]  # so that the next difference includes this one's error
            total = extrapolate(rounded, [1.0], total, torch.float32)
        return coded[::-1]

    def _rounded(self, output: Tensor, base: Tensor | None) -> Kept:
        """output - base in eight bits, or in fp32 if its rows are no use for scales (one dimension, or very long rows)."""
        if output.numel() == 0 or output.ndim < 2 or output.shape[-1] > MAX_ROW:
            return store_residual(output, base, torch.float32)
        rows = (-1, _row_length(output.shape))
        joined = None if base is None else base.reshape(rows)
        values, scales = quantize_feature(output.reshape(rows), joined, self.dtype)
        return Quantized(values.view(output.shape), scales)


def forget_on_error(past: list[Any], error: BaseException) -> None:
    """Drops a list of features, and the locals of an error's frames: whoever keeps its traceback would keep the features."""
    past.clear()
    traceback.clear_frames(error.__traceback__)


def format_of(cache_dtype: str | None, memory: DeviceMemory | None = None) -> Format:
    """The format of the option `cache_dtype`: a name in DTYPES, or None for features as computed."""
    dtype = None if cache_dtype is None else DTYPES[cache_dtype]
    return EightBits(dtype, memory) if dtype in LARGEST else Format(dtype, memory)


def narrower_than(cache_dtype: str | None) -> tuple[str, ...]:
    """The formats by name that are tried instead where there is too little room, each smaller than the one before."""
    return _NARROWER.get(cache_dtype, ())


def bytes_in_ring(ring: Ring) -> int:
    """Bytes of a ring's features."""
    return sum(kept.nbytes for feature in ring for kept in feature.tensors)


def values_of(kept: Kept) -> Tensor:
    """A tensor with the shape of what was stored; its content is the feature only if it was stored as it is."""
    match kept:
        case Quantized():
            return kept.values
        case Residual():
            return kept.both[0]
        case _:
            return kept


def weighted_sum(past: Sequence[Kept], weights: Sequence[float]) -> Tensor:
    """The weighted sum of what `Format.read` gave of one stream."""
    if isinstance(past[0], Residual):
        return extrapolate(past, weights, None, wide(past[0].both))
    newest = values_of(past[0])
    if isinstance(past[0], Tensor) and (len(past) == 1 or not newest.is_floating_point()):
        return newest
    return extrapolate(past, weights, None, torch.float32)


def _from_differences(past: Sequence[Kept]) -> list[Tensor]:
    """The features, from the oldest one and the differences of the newer ones; newest first."""
    total: Tensor | None = None
    values = []
    for kept in reversed(past):
        total = extrapolate([_by_row(kept)], [1.0], total, torch.float32)
        values.append(total)
    return values[::-1]


def _row_length(shape: Sequence[int]) -> int:
    """How many elements share a scale: those of a row, or of several short rows of one sample."""
    wanted = 1 << (max(SHARED // shape[-1], 1).bit_length() - 1)
    return shape[-1] * math.gcd(math.prod(shape[1:-1]), wanted)


def _by_row(kept: Kept) -> Kept:
    """The same with a scale for each row of the last dimension, as `extrapolate` takes it."""
    if not isinstance(kept, Quantized):
        return kept
    values, scales = kept
    joined = values.numel() // values.shape[-1] // len(scales)
    return Quantized(values, scales.expand(-1, joined).reshape(*values.shape[:-1], 1))
