"""Cosines of old and new attention, over heads or over keys, tile by tile; letters as in `attention_probe_triton`."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffcache.kernels.attention_cosine import EPS
from diffcache.kernels.attention_probe_triton import (
    KEYS,
    TOKENS,
    counted_keys,
    tile_of,
    tile_options,
    weights_of,
)
from diffcache.kernels.strided import contiguous_channels


@triton.jit
def cosine(dot, old_square, new_square, eps):
    return dot / (tl.maximum(tl.sqrt(old_square), eps) * tl.maximum(tl.sqrt(new_square), eps))


@triton.jit
def cosine_over_heads_kernel(
    old_q,  # [B, H, T, D]
    old_keys,  # [B, Hk, S, D]
    old_lse,  # [B, H, T]
    new_q,
    new_keys,
    new_lse,
    valid,  # [B, S]
    sums,  # [B, T, tiles of keys], of cosines
    H,
    T,
    S,
    D,
    scale,
    eps,
    oq_b,
    oq_h,
    oq_t,
    ok_b,
    ok_h,
    ok_s,
    nq_b,
    nq_h,
    nq_t,
    nk_b,
    nk_h,
    nk_s,
    G: tl.constexpr,
    HAS_VALID: tl.constexpr,
    UPCAST: tl.constexpr,
    CHANNELS: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    key = tl.program_id(2) * KEYS + tl.arange(0, KEYS)
    counted = counted_keys(valid, b, key, S, HAS_VALID)
    dot = tl.zeros([TOKENS, KEYS], tl.float32)
    old_square = tl.zeros([TOKENS, KEYS], tl.float32)
    new_square = tl.zeros([TOKENS, KEYS], tl.float32)
    for h in range(H):
        kh = h // G
        place = (b * H + h) * T + token
        query = tile_of(old_q + b * oq_b + h * oq_h, oq_t, token, T, D, CHANNELS, UPCAST)
        k = tile_of(old_keys + b * ok_b + kh * ok_h, ok_s, key, S, D, CHANNELS, UPCAST)
        norm = tl.load(old_lse + place, mask=token < T, other=float("inf"))
        old = weights_of(query, k, norm, counted, scale)
        query = tile_of(new_q + b * nq_b + h * nq_h, nq_t, token, T, D, CHANNELS, UPCAST)
        k = tile_of(new_keys + b * nk_b + kh * nk_h, nk_s, key, S, D, CHANNELS, UPCAST)
        norm = tl.load(new_lse + place, mask=token < T, other=float("inf"))
        new = weights_of(query, k, norm, counted, scale)
        dot += old * new
        old_square += old * old
        new_square += new * new
    total = tl.sum(cosine(dot, old_square, new_square, eps), axis=1)
    tiles = tl.num_programs(2)
    tl.store(sums + (b * T + token) * tiles + tl.program_id(2), total, mask=token < T)


@triton.jit
def cosine_over_keys_kernel(
    old_q,  # [B, H, T, D]
    old_keys,  # [B, Hk, S, D]
    old_lse,  # [B, H, T]
    new_q,
    new_keys,
    new_lse,
    valid,  # [B, S]
    cosines,  # [B, H, T]
    H,
    T,
    S,
    D,
    scale,
    eps,
    oq_b,
    oq_h,
    oq_t,
    ok_b,
    ok_h,
    ok_s,
    nq_b,
    nq_h,
    nq_t,
    nk_b,
    nk_h,
    nk_s,
    G: tl.constexpr,
    HAS_VALID: tl.constexpr,
    UPCAST: tl.constexpr,
    CHANNELS: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64)
    b, h = head // H, head % H
    kh = h // G
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    place = head * T + token
    old_query = tile_of(old_q + b * oq_b + h * oq_h, oq_t, token, T, D, CHANNELS, UPCAST)
    new_query = tile_of(new_q + b * nq_b + h * nq_h, nq_t, token, T, D, CHANNELS, UPCAST)
    old_norm = tl.load(old_lse + place, mask=token < T, other=float("inf"))
    new_norm = tl.load(new_lse + place, mask=token < T, other=float("inf"))
    dot = tl.zeros([TOKENS], tl.float32)
    old_square = tl.zeros([TOKENS], tl.float32)
    new_square = tl.zeros([TOKENS], tl.float32)
    for start in range(0, S, KEYS):
        key = start + tl.arange(0, KEYS)
        counted = counted_keys(valid, b, key, S, HAS_VALID)
        k = tile_of(old_keys + b * ok_b + kh * ok_h, ok_s, key, S, D, CHANNELS, UPCAST)
        old = weights_of(old_query, k, old_norm, counted, scale)
        k = tile_of(new_keys + b * nk_b + kh * nk_h, nk_s, key, S, D, CHANNELS, UPCAST)
        new = weights_of(new_query, k, new_norm, counted, scale)
        dot += tl.sum(old * new, axis=1)
        old_square += tl.sum(old * old, axis=1)
        new_square += tl.sum(new * new, axis=1)
    tl.store(cosines + place, cosine(dot, old_square, new_square, eps), mask=token < T)


def cosine_over_heads(
    old_q: Tensor,
    old_keys: Tensor,
    old_lse: Tensor,
    new_q: Tensor,
    new_keys: Tensor,
    new_lse: Tensor,
    valid: Tensor | None,
    scale: float,
) -> Tensor:
    batch, heads, tokens, channels = old_q.shape
    count = old_keys.shape[2]
    sums = old_q.new_empty(batch, tokens, triton.cdiv(count, KEYS), dtype=torch.float32)
    qk = [contiguous_channels(x) for x in (old_q, old_keys, new_q, new_keys)]
    cosine_over_heads_kernel[(batch, triton.cdiv(tokens, TOKENS), sums.shape[2])](
        *qk[:2],
        old_lse.contiguous(),
        *qk[2:],
        new_lse.contiguous(),
        old_keys if valid is None else valid.contiguous(),
        sums,
        heads,
        tokens,
        count,
        channels,
        scale,
        EPS,
        *(stride for x in qk for stride in x.stride()[:3]),
        G=heads // old_keys.shape[1],
        **tile_options(valid, *qk),
    )
    return sums.sum(-1) / (count if valid is None else valid.sum(-1, keepdim=True))


def cosine_over_keys(
    old_q: Tensor,
    old_keys: Tensor,
    old_lse: Tensor,
    new_q: Tensor,
    new_keys: Tensor,
    new_lse: Tensor,
    valid: Tensor | None,
    scale: float,
) -> Tensor:
    batch, heads, tokens, channels = old_q.shape
    cosines = old_q.new_empty(batch, heads, tokens, dtype=torch.float32)
    qk = [contiguous_channels(x) for x in (old_q, old_keys, new_q, new_keys)]
    cosine_over_keys_kernel[(batch * heads, triton.cdiv(tokens, TOKENS))](
        *qk[:2],
        old_lse.contiguous(),
        *qk[2:],
        new_lse.contiguous(),
        old_keys if valid is None else valid.contiguous(),
        cosines,
        heads,
        tokens,
        old_keys.shape[2],
        channels,
        scale,
        EPS,
        *(stride for x in qk for stride in x.stride()[:3]),
        G=heads // old_keys.shape[1],
        **tile_options(valid, *qk),
    )
    return cosines.mean(1)
