"""Rotary embedding and scatter in one launch; the comparison with the old rows in another, before it.

Letters as in `rope_scatter`; G = H / Hk queries share a key head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffcache.kernels.rope_scatter import EPS
from diffcache.kernels.strided import contiguous_channels
from diffcache.kernels.tiles_triton import total


@triton.jit
def rotated_pair(x, cos, sin, lane, half):
    """Both halves of the rotated channels at `x`, fp32, for the lanes below `half`."""
    first = tl.load(x + lane, mask=lane < half, other=0.0).to(tl.float32)
    second = tl.load(x + half + lane, mask=lane < half, other=0.0).to(tl.float32)
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def angles(cos, sin, positions, index, valid, lane, half):
    """Cosines and sines [HALF] of one row; those of angle 0 if it is skipped."""
    at = tl.load(positions + index).to(tl.int64) * half + lane
    known = valid & (lane < half)
    return tl.load(cos + at, mask=known, other=1.0), tl.load(sin + at, mask=known, other=0.0)


@triton.jit
def rotate_and_scatter_kernel(
    q,  # [B, H, n, D]
    k,  # [B, Hk, n, D]
    v,  # [B, Hk, n, D]
    rows,  # [B, n]
    positions,  # [B, n]
    cos,  # [P, R/2]
    sin,  # [P, R/2]
    keys,  # [B, Hk, S, D]
    values,  # [B, Hk, S, D]
    rotated,  # [B, H, n, D], contiguous
    n,
    slots,
    half,
    channels,
    q_b,
    q_h,
    q_n,
    k_b,
    k_h,
    k_n,
    v_b,
    v_h,
    v_n,
    keys_b,
    keys_h,
    keys_s,
    values_b,
    values_h,
    values_s,
    G: tl.constexpr,
    HALF: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    heads = tl.num_programs(1)
    b, i = index // n, index % n
    slot = tl.load(rows + index).to(tl.int64)
    valid = (slot >= 0) & (slot < slots)
    lane = tl.arange(0, HALF)
    c, s = angles(cos, sin, positions, index, valid, lane, half)
    channel = tl.arange(0, CHANNELS)
    passed = (channel >= 2 * half) & (channel < channels)

    new_key = k + b * k_b + head * k_h + i * k_n
    key = keys + b * keys_b + head * keys_h + slot * keys_s
    first, second = rotated_pair(new_key, c, s, lane, half)
    tl.store(key + lane, first.to(keys.dtype.element_ty), mask=valid & (lane < half))
    tl.store(key + half + lane, second.to(keys.dtype.element_ty), mask=valid & (lane < half))
    rest = tl.load(new_key + channel, mask=passed, other=0.0).to(tl.float32)
    tl.store(key + channel, rest.to(keys.dtype.element_ty), mask=valid & passed)

    new_value = tl.load(v + b * v_b + head * v_h + i * v_n + channel, mask=channel < channels, other=0.0)
    value = values + b * values_b + head * values_h + slot * values_s
    new_value = new_value.to(tl.float32).to(values.dtype.element_ty)
    tl.store(value + channel, new_value, mask=valid & (channel < channels))

    for g in range(G):
        query = q + b * q_b + (head * G + g) * q_h + i * q_n
        out = rotated + ((b * heads * G + head * G + g) * n + i) * channels
        first, second = rotated_pair(query, c, s, lane, half)
        tl.store(out + lane, first.to(rotated.dtype.element_ty), mask=lane < half)
        tl.store(out + half + lane, second.to(rotated.dtype.element_ty), mask=lane < half)
        tl.store(out + channel, tl.load(query + channel, mask=passed, other=0.0), mask=passed)


@triton.jit
def cosine_sums(new, old):
    """new . old, new . new and old . old over a tile."""
    dot = total(new * old)
    return dot, total(new * new), total(old * old)


@triton.jit
def row_drift_kernel(
    k,  # [B, Hk, n, D]
    v,  # [B, Hk, n, D]
    rows,  # [B, n]
    positions,  # [B, n]
    cos,  # [P, R/2]
    sin,  # [P, R/2]
    keys,  # [B, Hk, S, D]
    values,  # [B, Hk, S, D]
    cosines,  # [2, B, n]
    n,
    slots,
    half,
    channels,
    heads,
    k_b,
    k_h,
    k_n,
    v_b,
    v_h,
    v_n,
    keys_b,
    keys_h,
    keys_s,
    values_b,
    values_h,
    values_s,
    eps,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    b, i = index // n, index % n
    slot = tl.load(rows + index).to(tl.int64)
    valid = (slot >= 0) & (slot < slots)
    lane = tl.arange(0, HALF)
    c, s = angles(cos, sin, positions, index, valid, lane, half)
    head = tl.arange(0, HEADS)[:, None]
    channel = tl.arange(0, CHANNELS)[None, :]
    lane = lane[None, :]
    paired = (head < heads) & (lane < half)
    passed = (head < heads) & (channel >= 2 * half) & (channel < channels)
    inside = (head < heads) & (channel < channels)

    new_key = k + b * k_b + head * k_h + i * k_n
    key = keys + b * keys_b + head * keys_h + slot * keys_s
    x = tl.load(new_key + lane, mask=paired, other=0.0).to(tl.float32)
    y = tl.load(new_key + half + lane, mask=paired, other=0.0).to(tl.float32)
    old_x = tl.load(key + lane, mask=valid & paired, other=0.0).to(tl.float32)
    old_y = tl.load(key + half + lane, mask=valid & paired, other=0.0).to(tl.float32)
    rest = tl.load(new_key + channel, mask=passed, other=0.0).to(tl.float32)
    old_rest = tl.load(key + channel, mask=valid & passed, other=0.0).to(tl.float32)
    dot_x, new_x, norm_x = cosine_sums(x * c[None, :] - y * s[None, :], old_x)
    dot_y, new_y, norm_y = cosine_sums(y * c[None, :] + x * s[None, :], old_y)
    dot_rest, new_rest, norm_rest = cosine_sums(rest, old_rest)
    norms = tl.sqrt(new_x + new_y + new_rest) * tl.sqrt(norm_x + norm_y + norm_rest)
    key_cosine = (dot_x + dot_y + dot_rest) / tl.maximum(norms, eps)

    new_value = tl.load(v + b * v_b + head * v_h + i * v_n + channel, mask=inside, other=0.0)
    value = values + b * values_b + head * values_h + slot * values_s
    old_value = tl.load(value + channel, mask=valid & inside, other=0.0)
    dot_v, new_v, norm_v = cosine_sums(new_value.to(tl.float32), old_value.to(tl.float32))
    value_cosine = dot_v / tl.maximum(tl.sqrt(new_v) * tl.sqrt(norm_v), eps)

    tl.store(cosines + index, tl.where(valid, key_cosine, 1.0))
    tl.store(cosines + tl.num_programs(0) + index, tl.where(valid, value_cosine, 1.0))


def rotate_and_scatter(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    q, k, v = (contiguous_channels(x) for x in (q, k, v))
    (batch, heads, n, channels), key_heads, half = q.shape, k.shape[1], cos.shape[1]
    rotated = q.new_empty(q.shape)
    rotate_and_scatter_kernel[(batch * n, key_heads)](
        q,
        k,
        v,
        rows.contiguous(),
        positions.contiguous(),
        cos.contiguous(),
        sin.contiguous(),
        keys,
        values,
        rotated,
        n,
        keys.shape[2],
        half,
        channels,
        *(stride for x in (q, k, v, keys, values) for stride in x.stride()[:3]),
        G=heads // key_heads,
        HALF=int(triton.next_power_of_2(half)),
        CHANNELS=int(triton.next_power_of_2(channels)),
        num_warps=1,
    )
    return rotated


def row_drift(
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    k, v = contiguous_channels(k), contiguous_channels(v)
    (batch, heads, n, channels), half = k.shape, cos.shape[1]
    cosines = torch.empty(2, batch, n, device=k.device)
    row_drift_kernel[(batch * n,)](
        k,
        v,
        rows.contiguous(),
        positions.contiguous(),
        cos.contiguous(),
        sin.contiguous(),
        keys,
        values,
        cosines,
        n,
        keys.shape[2],
        half,
        channels,
        heads,
        *(stride for x in (k, v, keys, values) for stride in x.stride()[:3]),
        EPS,
        HEADS=int(triton.next_power_of_2(heads)),
        HALF=int(triton.next_power_of_2(half)),
        CHANNELS=int(triton.next_power_of_2(channels)),
        num_warps=8,
    )
    return cosines
