"""Replaces rows and computes their cosines in one launch, with one program for each row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffcache.kernels.cosine import TINY
from diffcache.kernels.tiles_triton import total


@triton.jit
def replace_and_compare_kernel(
    stored,  # [B, Hk, n, D]
    new,  # [B, Hk, n, D]
    drift,  # [B, n]
    n,
    heads,
    channels,
    stored_b,
    stored_h,
    stored_n,
    stored_d,
    new_b,
    new_h,
    new_n,
    new_d,
    tiny,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    b, i = index // n, index % n
    head, channel = tl.arange(0, HEADS)[:, None].to(tl.int64), tl.arange(0, CHANNELS)[None, :]
    inside = (head < heads) & (channel < channels)
    slot = stored + b * stored_b + head * stored_h + i * stored_n + channel * stored_d
    row = tl.load(new + b * new_b + head * new_h + i * new_n + channel * new_d, mask=inside, other=0.0)
    past = tl.load(slot, mask=inside, other=0.0).to(tl.float32)
    tl.store(slot, row.to(stored.dtype.element_ty), mask=inside)
    row = row.to(tl.float32)
    squares = total(row * row) * total(past * past)
    tl.store(drift + index, total(row * past) / tl.sqrt(tl.maximum(squares, tiny)))


def replace_and_compare(stored: Tensor, new: Tensor) -> Tensor:
    batch, heads, n, channels = new.shape
    drift = torch.empty(batch, n, dtype=torch.float32, device=new.device)
    replace_and_compare_kernel[(batch * n,)](
        stored,
        new,
        drift,
        n,
        heads,
        channels,
        *stored.stride(),
        *new.stride(),
        TINY,
        HEADS=int(triton.next_power_of_2(heads)),
        CHANNELS=int(triton.next_power_of_2(channels)),
        num_warps=8,
    )
    return drift
