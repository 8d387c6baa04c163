"""Features in eight bits with one scale for each row, in a half or a quarter of the memory."""

from typing import NamedTuple

import torch
from torch import Tensor

from diffcache.kernels.dispatch import FP8, op

LARGEST = {torch.int8: 127.0, FP8: 448.0}
TINY = 1e-30
MAX_ROW = 32768  # much longer rows overflow the registers of a program


class Quantized(NamedTuple):
    """A tensor in eight bits: values * scales.

    Attributes:
        values: int8 or float8_e4m3fn, [..., channels].
        scales: fp32 [..., 1], one for each row of the last dimension: for each token in [batch, tokens, channels].
    """

    values: Tensor
    scales: Tensor

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scales.nbytes


def quantize_feature(x: Tensor, base: Tensor | None = None, dtype: torch.dtype = torch.int8) -> Quantized:
    """Quantises x, or x - base, to eight bits; `extrapolate` reads the result.

    Let m be a row's largest magnitude. The error of int8 is at most m / 254. That of e4m3 is at most 1/16 of the value, or
    m / 458752 for values below m / 28672. Rounding in fp32 adds to both. A row with a value that is not finite is read as
    NaN, and a row whose values are all smaller than 1e-30 as zeros.

    Args:
        x: [..., channels], floating, at most 32768 channels.
        base: same shape; None for zeros. The difference is computed in fp32.
        dtype: torch.int8 or torch.float8_e4m3fn.

    Raises:
        ValueError: another dtype, or too many channels.
    """
    if dtype not in LARGEST:
        raise ValueError(f"dtype={dtype} is not an eight-bit format: use torch.int8 or torch.float8_e4m3fn.")
    if x.shape[-1] > MAX_ROW:
        raise ValueError(
            f"Rows of {x.shape[-1]} elements are longer than {MAX_ROW}: split the last dimension."
        )
    return Quantized(*quantize_rows(x.detach(), None if base is None else base.detach(), dtype))


def _fake_rows(x: Tensor, base: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """New contiguous memory, however x lies in its own, as the kernel makes it."""
    return x.new_empty(x.shape, dtype=dtype), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


@op(fake=_fake_rows)
def quantize_rows(x: Tensor, base: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Values and scales of x - base, computed in fp32; None stands for zeros."""
    x = (x.float() if base is None else x.float() - base.float()).contiguous()
    if x.numel() == 0:
        return x.to(dtype), x.new_zeros(*x.shape[:-1], 1)
    largest = x.abs().amax(-1, keepdim=True)
    bounded = largest.clamp(min=TINY)
    levels = x * (
        torch.full_like(bounded, LARGEST[dtype]) / bounded
    )  # tensor / tensor, because PyTorch multiplies by the reciprocal in number / tensor
    if dtype == torch.int8:
        levels = (levels + 0.5).floor()
    return levels.to(dtype), torch.where(largest.isfinite(), bounded / LARGEST[dtype], torch.nan)
