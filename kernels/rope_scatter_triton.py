"""Rotates and scatters in one launch; letters as in `rope_scatter`, and G = H / Hk query heads share a key head."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def sum_of_products(x, cos, y, sin, PRECISION: tl.constexpr):
    """x * cos + y * sin, each product and the sum rounded."""
    left, right = (x * cos).to(PRECISION).to(x.dtype), (y * sin).to(PRECISION).to(x.dtype)
    return (left + right).to(PRECISION)


@triton.jit
def rotate_row(
    x,  # [D]
    out,  # [D]
    cos,  # [R]
    sin,  # [R]
    stride_x,
    stride_out,
    half,
    channels,
    valid,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
    HALF: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Rotates the first 2 * half channels of one row, and copies the others."""
    lane, channel = tl.arange(0, HALF), tl.arange(0, CHANNELS)
    turns, passes = lane < half, (channel >= 2 * half) & (channel < channels)
    near, far = lane, half + lane
    first = tl.load(x + near * stride_x, mask=turns, other=0.0).to(ACC)
    second = tl.load(x + far * stride_x, mask=turns, other=0.0).to(ACC)
    rest = tl.load(x + channel * stride_x, mask=passes, other=0.0)
    cos_near = tl.load(cos + near, mask=turns, other=0.0).to(ACC)
    sin_near = tl.load(sin + near, mask=turns, other=0.0).to(ACC)
    cos_far = tl.load(cos + far, mask=turns, other=0.0).to(ACC)
    sin_far = tl.load(sin + far, mask=turns, other=0.0).to(ACC)
    new_first = sum_of_products(first, cos_near, second, sin_near, PRECISION).to(rest.dtype)
    new_second = sum_of_products(second, cos_far, first, sin_far, PRECISION).to(rest.dtype)
    kept = out.dtype.element_ty
    tl.store(out + near * stride_out, new_first.to(kept), mask=valid & turns)
    tl.store(out + far * stride_out, new_second.to(kept), mask=valid & turns)
    tl.store(out + channel * stride_out, rest.to(kept), mask=valid & passes)


@triton.jit
def rope_scatter_kernel(
    q,  # [B, H, n, D]
    k,  # [B, Hk, n, D]
    v,  # [B, Hk, n, D]
    cos,  # [1 or B, n, R]
    sin,  # [1 or B, n, R]
    rows,  # [B, n]
    keys,  # [B, Hk, S, D]
    values,  # [B, Hk, S, D]
    rotated,  # [B, H, n, D]
    n,
    slots,
    half,
    channels,
    table_b,
    q_b,
    q_h,
    q_n,
    q_d,
    k_b,
    k_h,
    k_n,
    k_d,
    v_b,
    v_h,
    v_n,
    v_d,
    keys_b,
    keys_h,
    keys_s,
    keys_d,
    values_b,
    values_h,
    values_s,
    values_d,
    rotated_b,
    rotated_h,
    rotated_n,
    rotated_d,
    HAS_ROWS: tl.constexpr,
    G: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
    HALF: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    b, i = index // n, index % n
    slot = tl.load(rows + index).to(tl.int64) if HAS_ROWS else i
    valid = (slot >= 0) & (slot < slots)
    angles = b * table_b + i * 2 * half
    cos += angles
    sin += angles

    new_key = k + b * k_b + head * k_h + i * k_n
    key = keys + b * keys_b + head * keys_h + slot * keys_s
    rotate_row(new_key, key, cos, sin, k_d, keys_d, half, channels, valid, PRECISION, ACC, HALF, CHANNELS)

    channel = tl.arange(0, CHANNELS)
    inside = channel < channels
    new_value = tl.load(v + b * v_b + head * v_h + i * v_n + channel * v_d, mask=inside, other=0.0)
    value = values + b * values_b + head * values_h + slot * values_s + channel * values_d
    tl.store(value, new_value.to(values.dtype.element_ty), mask=valid & inside)

    for g in range(G):
        query = q + b * q_b + (head * G + g) * q_h + i * q_n
        out = rotated + b * rotated_b + (head * G + g) * rotated_h + i * rotated_n
        rotate_row(query, out, cos, sin, q_d, rotated_d, half, channels, True, PRECISION, ACC, HALF, CHANNELS)


def rope_scatter(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    rows: Tensor | None,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    rotated = torch.empty_like(q)
    (batch, heads, n, channels), key_heads, size = q.shape, k.shape[1], cos.shape[-1]
    precision = torch.promote_types(q.dtype, cos.dtype)
    rope_scatter_kernel[(batch * n, key_heads)](
        q,
        k,
        v,
        cos.contiguous(),
        sin.contiguous(),
        q if rows is None else rows.contiguous(),
        keys,
        values,
        rotated,
        n,
        keys.shape[2],
        size // 2,
        channels,
        n * size if len(cos) > 1 else 0,
        *(stride for x in (q, k, v, keys, values, rotated) for stride in x.stride()),
        HAS_ROWS=rows is not None,
        G=heads // key_heads,
        PRECISION=getattr(tl, str(precision).removeprefix("torch.")),
        ACC=tl.float64 if precision == torch.float64 else tl.float32,
        HALF=int(triton.next_power_of_2(size // 2)),
        CHANNELS=int(triton.next_power_of_2(channels)),
        num_warps=1,
        enable_fp_fusion=False,  # so that products are rounded as in the model
    )
    return rotated
