"""Formats: how stored features lie in memory. Stores ask them; nobody else needs to know."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from diffcache.kernels.dispatch import FP8
from diffcache.kernels.extrapolate import extrapolate
from diffcache.kernels.quantize import LARGEST, MAX_ROW, Quantized, quantize_feature
from diffcache.kernels.residual import store_residual

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8, "float8": FP8}
"""What `cache_dtype=` may name."""

SHARED = 256
"""As many elements share a scale, where rows are shorter: four bytes for each 256."""

Kept = Tensor | Quantized


@dataclass(frozen=True, eq=False)
class Feature:
    """What one computed call left behind: something detached for each tensor of the module's output."""

    tick: int
    tensors: tuple[Kept, ...]


class Format:
    """Where features were computed, in some precision.

    Args:
        dtype: a floating one, or torch.int8 or torch.float8_e4m3fn, with a scale for each row. None: as computed, a
            residual one precision wider.
    """

    on_host = False
    """Features lie in host memory, not on the device."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        self.dtype = dtype

    def keep(self, output: Tensor, base: Tensor | None) -> Kept:
        """output, or output - base, as it is kept; it shares no memory with either.

        What is not floating, or has no rows that a scale could serve, is kept as computed.
        """
        if not output.is_floating_point():
            return store_residual(output, None)
        if self.dtype not in LARGEST:
            return store_residual(output, base, self.dtype)
        if output.numel() == 0 or output.ndim < 2 or output.shape[-1] > MAX_ROW:
            return store_residual(output, base)
        rows = (-1, _row_length(output.shape))
        joined = None if base is None else base.reshape(rows)
        values, scales = quantize_feature(output.reshape(rows), joined, self.dtype)
        return Quantized(values.view(output.shape), scales)

    def read(self, ring: Sequence[Feature], depth: int) -> list[list[Kept]]:
        """The newest `depth` features of a ring, as `extrapolate` takes them."""
        return [[_by_row(kept) for kept in feature.tensors] for feature in islice(ring, depth)]

    def rest(self) -> None:
        """A denoiser call is over: nothing more is read in it."""


def tensors_of(kept: Kept) -> tuple[Tensor, ...]:
    return tuple(kept) if isinstance(kept, Quantized) else (kept,)


def values_of(kept: Kept) -> Tensor:
    """The tensor that has the feature's shape."""
    return kept.values if isinstance(kept, Quantized) else kept


def plain(kept: Kept) -> Tensor:
    """A feature's tensor, floating."""
    return extrapolate([kept], [1.0], None, torch.float32) if isinstance(kept, Quantized) else kept


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
