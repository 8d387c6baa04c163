"""Cosines of old and new attention, over heads or over keys, tile by tile; letters as in `attention_probe_triton`.

Each tile of keys is loaded once and serves both: the old keys differ from the new ones only in the overwritten rows. What the
cosines are made of is summed by several programs: old times new attention, and the squares of both.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffcache.kernels.attention_probe_triton import (
    KEYS,
    TOKENS,
    counted_keys,
    key_mass,
    log_sum_exp,
    restored,
    shared_loop,
    tile_of,
    tile_options,
    weights_of,
)
from diffcache.kernels.cosine import TINY
from diffcache.kernels.strided import contiguous_channels


@triton.jit
def cosine_over_heads_kernel(
    old_q,  # [B, H, T, D], like q
    q,
    keys,  # [B, Hk, S, D]
    old_keys,  # [B, Hk, n, D]
    old_lse,  # [B, H, T], like lse
    lse,
    slots,  # [B, S], index in `old_keys` of each key, -1 for none
    valid,  # [B, S]
    sums,  # [P, 3, B, T, S], over each program's heads
    H,
    T,
    S,
    D,
    span,
    scale,
    p_b,
    p_h,
    p_t,
    q_b,
    q_h,
    q_t,
    k_b,
    k_h,
    k_s,
    o_b,
    o_h,
    o_n,
    G: tl.constexpr,
    HAS_VALID: tl.constexpr,
    UPCAST: tl.constexpr,
    CHANNELS: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    key = tl.program_id(2) % tl.cdiv(S, KEYS) * KEYS + tl.arange(0, KEYS)
    counted = counted_keys(valid, b, key, S, HAS_VALID)
    dot = tl.zeros([TOKENS, KEYS], tl.float32)
    old_square = tl.zeros([TOKENS, KEYS], tl.float32)
    new_square = tl.zeros([TOKENS, KEYS], tl.float32)
    tiles = tl.cdiv(S, KEYS)
    part = tl.program_id(2) // tiles
    for h in range(part * span, tl.minimum(H, (part + 1) * span)):
        row = (b * H + h) * T + token
        k = tile_of(keys + b * k_b + (h // G) * k_h, k_s, key, S, D, CHANNELS, UPCAST)
        query = tile_of(q + b * q_b + h * q_h, q_t, token, T, D, CHANNELS, UPCAST)
        new = weights_of(query, k, tl.load(lse + row, mask=token < T, other=float("inf")), counted, scale)
        old = old_keys + b * o_b + (h // G) * o_h
        k = restored(k, old, o_n, slots + b * S, key, S, D, CHANNELS, UPCAST)
        query = tile_of(old_q + b * p_b + h * p_h, p_t, token, T, D, CHANNELS, UPCAST)
        past = weights_of(
            query, k, tl.load(old_lse + row, mask=token < T, other=float("inf")), counted, scale
        )
        dot += past * new
        old_square += past * past
        new_square += new * new
    size = tl.num_programs(0).to(tl.int64) * T * S
    place = sums + part * 3 * size + (b * T + token[:, None]) * S + key[None, :]
    inside = (token[:, None] < T) & (key[None, :] < S)
    tl.store(place, dot, mask=inside)
    tl.store(place + size, old_square, mask=inside)
    tl.store(place + 2 * size, new_square, mask=inside)


@triton.jit
def cosine_over_keys_kernel(
    old_q,  # [B, H, T, D], like q
    q,
    keys,  # [B, Hk, S, D]
    old_keys,  # [B, Hk, n, D]
    old_lse,  # [B, H, T], like lse
    lse,
    slots,  # [B, S], index in `old_keys` of each key, -1 for none
    valid,  # [B, S]
    sums,  # [P, 3, B, H, T], over each program's keys
    H,
    T,
    S,
    D,
    span,
    scale,
    p_b,
    p_h,
    p_t,
    q_b,
    q_h,
    q_t,
    k_b,
    k_h,
    k_s,
    o_b,
    o_h,
    o_n,
    G: tl.constexpr,
    HAS_VALID: tl.constexpr,
    UPCAST: tl.constexpr,
    CHANNELS: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64)
    b, h = head // H, head % H
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    row = head * T + token
    query = tile_of(q + b * q_b + h * q_h, q_t, token, T, D, CHANNELS, UPCAST)
    old_query = tile_of(old_q + b * p_b + h * p_h, p_t, token, T, D, CHANNELS, UPCAST)
    norm = tl.load(lse + row, mask=token < T, other=float("inf"))
    old_norm = tl.load(old_lse + row, mask=token < T, other=float("inf"))
    dot = tl.zeros([TOKENS], tl.float32)
    old_square = tl.zeros([TOKENS], tl.float32)
    new_square = tl.zeros([TOKENS], tl.float32)
    part = tl.program_id(2)
    for start in range(part * span, tl.minimum(S, (part + 1) * span), KEYS):
        key = start + tl.arange(0, KEYS)
        counted = counted_keys(valid, b, key, S, HAS_VALID)
        k = tile_of(keys + b * k_b + (h // G) * k_h, k_s, key, S, D, CHANNELS, UPCAST)
        new = weights_of(query, k, norm, counted, scale)
        old = old_keys + b * o_b + (h // G) * o_h
        k = restored(k, old, o_n, slots + b * S, key, S, D, CHANNELS, UPCAST)
        past = weights_of(old_query, k, old_norm, counted, scale)
        dot += tl.sum(past * new, axis=1)
        old_square += tl.sum(past * past, axis=1)
        new_square += tl.sum(new * new, axis=1)
    size = tl.num_programs(0).to(tl.int64) * T
    place = sums + part * 3 * size + row
    tl.store(place, dot, mask=token < T)
    tl.store(place + size, old_square, mask=token < T)
    tl.store(place + 2 * size, new_square, mask=token < T)


def attention_drift(
    queries: Tensor,
    share: Tensor,
    old_queries: Tensor,
    keys: Tensor,
    rows: Tensor,
    old_keys: Tensor,
    valid: Tensor | None,
    scale: float,
    over_keys: bool,
) -> tuple[Tensor, Tensor]:
    window = share.shape[1]
    lse = log_sum_exp(queries, keys, None, valid, scale)
    shared = lse[:, :, :window] - share.log()[:, None]  # exp(x - lse) * share
    received = key_mass(queries[:, :, :window], keys, shared, valid, scale)
    old = old_queries, old_keys, _slots(rows, keys.shape[2])
    cosines = _cosines(queries[:, :, window:], keys, lse[:, :, window:], old, valid, scale, over_keys)
    return received, cosines


def _cosines(
    q: Tensor,
    keys: Tensor,
    lse: Tensor,
    old: tuple[Tensor, Tensor, Tensor],
    valid: Tensor | None,
    scale: float,
    over_keys: bool,
) -> Tensor:
    """Cosines [B, T] of new and old attention; `old` holds the old queries, the old keys and the slots of these."""
    old_q, q, keys, old_keys = (contiguous_channels(x) for x in (old[0], q, keys, old[1]))
    (batch, heads, tokens, channels), count, slots = q.shape, keys.shape[2], old[2]
    old_lse = log_sum_exp(old_q, keys, (old_keys, slots), valid, scale)
    given = (
        *(old_q, q, keys, old_keys, old_lse, lse.contiguous(), slots),
        keys if valid is None else valid.contiguous(),
    )
    sizes = (heads, tokens, count, channels)
    strides = [stride for x in (old_q, q, keys, old_keys) for stride in x.stride()[:3]]
    options: dict[str, Any] = {"G": heads // keys.shape[1], **tile_options(valid, old_q, q, keys, old_keys)}
    tiles, key_tiles = triton.cdiv(tokens, TOKENS), triton.cdiv(count, KEYS)
    if over_keys:
        parts, span = shared_loop(batch * heads * tiles, key_tiles)
        sums = q.new_empty(parts, 3, batch, heads, tokens, dtype=torch.float32)
        grid = batch * heads, tiles, parts
        cosine_over_keys_kernel[grid](*given, sums, *sizes, span * KEYS, scale, *strides, **options)
        return _cosine(sums).mean(1)
    parts, span = shared_loop(batch * tiles * key_tiles, heads)
    sums = q.new_empty(parts, 3, batch, tokens, count, dtype=torch.float32)
    grid = batch, tiles, key_tiles * parts
    cosine_over_heads_kernel[grid](*given, sums, *sizes, span, scale, *strides, **options)
    return _cosine(sums).sum(-1) / (count if valid is None else valid.sum(-1, keepdim=True))


def _cosine(sums: Tensor) -> Tensor:
    """Of old and new attention, from sums of their products and squares [parts, 3, ...]."""
    dot, old_square, new_square = sums.sum(0)
    cosines: Tensor = dot * (old_square * new_square).clamp_(min=TINY).rsqrt_()
    return cosines


def _slots(rows: Tensor, count: int) -> Tensor:
    """For each key [B, S] the index of its old value among the rows [B, n]; -1 if the key was not overwritten."""
    index = torch.arange(rows.shape[1], dtype=torch.int32, device=rows.device).expand_as(rows)
    return index.new_full((len(rows), count), -1).scatter_(1, rows.long(), index)
