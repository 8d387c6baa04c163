"""The log-sum-exp of attention, and the attention that each key receives, from tiles of queries and tiles of keys.

Letters as in `attention_probe`; G = H / Hk queries share a key head. A tile is [TOKENS, KEYS]. P programs share a loop, and
each does `span` of it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffcache.kernels.strided import contiguous_channels

TOKENS = 16
KEYS = 32

FULL = 264
"""Programs that fill a GPU: two for each multiprocessor of an H100 or H200. Where there are fewer, a loop is split among several."""


@triton.jit
def tile_of(x, stride, index, count, channels, CHANNELS: tl.constexpr, UPCAST: tl.constexpr):
    """Rows `index` of a matrix [count, channels], in fp32 with UPCAST: the interpreter multiplies nothing else."""
    channel = tl.arange(0, CHANNELS)[None, :]
    inside = (index[:, None] < count) & (channel < channels)
    rows = tl.load(x + index[:, None].to(tl.int64) * stride + channel, mask=inside, other=0.0)
    return rows.to(tl.float32) if UPCAST else rows


@triton.jit
def counted_keys(valid, b, key, S, HAS_VALID: tl.constexpr):
    """Which keys of a tile count, [KEYS]."""
    counted = key < S
    if HAS_VALID:
        counted = counted & (tl.load(valid + b * S + key, mask=counted, other=0) != 0)
    return counted


@triton.jit
def restored(
    keys, old_keys, stride, slots, key, count, channels, CHANNELS: tl.constexpr, UPCAST: tl.constexpr
):
    """A tile of keys before the update: key s is row slots[s] of `old_keys`, unless that is -1."""
    slot = tl.load(slots + key, mask=key < count, other=-1)[:, None].to(tl.int64)
    channel = tl.arange(0, CHANNELS)[None, :]
    changed = slot >= 0
    old = tl.load(old_keys + slot * stride + channel, mask=changed & (channel < channels), other=0.0)
    return tl.where(changed, old.to(tl.float32) if UPCAST else old, keys)


@triton.jit
def weights_of(query, keys, lse, counted, scale):
    """exp(scale * q . k - lse), 0 at keys that do not count: [TOKENS, KEYS]."""
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    return tl.where(counted[None, :], tl.exp(scores - lse[:, None]), 0.0)


@triton.jit
def lse_kernel(
    q,  # [B, H, T, D]
    keys,  # [B, Hk, S, D]
    old_keys,  # [B, Hk, n, D]
    slots,  # [B, S], index in `old_keys` of each key, -1 for none
    valid,  # [B, S]
    lse,  # [P, B, H, T], of each program's keys
    H,
    T,
    S,
    D,
    span,
    scale,
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
    HAS_OLD: tl.constexpr,
    HAS_VALID: tl.constexpr,
    UPCAST: tl.constexpr,
    CHANNELS: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64)
    b, h = head // H, head % H
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    query = tile_of(q + b * q_b + h * q_h, q_t, token, T, D, CHANNELS, UPCAST)
    top = tl.full([TOKENS], float("-inf"), tl.float32)
    total = tl.zeros([TOKENS], tl.float32)
    part = tl.program_id(2)
    for start in range(part * span, tl.minimum(S, (part + 1) * span), KEYS):
        key = start + tl.arange(0, KEYS)
        counted = counted_keys(valid, b, key, S, HAS_VALID)
        k = tile_of(keys + b * k_b + (h // G) * k_h, k_s, key, S, D, CHANNELS, UPCAST)
        if HAS_OLD:
            old = old_keys + b * o_b + (h // G) * o_h
            k = restored(k, old, o_n, slots + b * S, key, S, D, CHANNELS, UPCAST)
        scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(counted[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)  # -inf - -inf is NaN
        total = total * tl.exp(top - shift) + tl.sum(tl.exp(scores - shift[:, None]), axis=1)
        top = higher
    row = (part * tl.num_programs(0) + head) * T + token
    tl.store(lse + row, tl.where(top == float("-inf"), top, top + tl.log(total)), mask=token < T)


@triton.jit
def key_mass_kernel(
    q,  # [B, H, T, D]
    keys,  # [B, Hk, S, D]
    lse,  # [B, H, T]
    valid,  # [B, S]
    masses,  # [B, Hk, P, S], to be summed over Hk and P
    Hk,
    T,
    S,
    D,
    span,
    scale,
    q_b,
    q_h,
    q_t,
    k_b,
    k_h,
    k_s,
    G: tl.constexpr,
    HAS_VALID: tl.constexpr,
    UPCAST: tl.constexpr,
    CHANNELS: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
):
    key_head = tl.program_id(0).to(tl.int64)
    b, kh = key_head // Hk, key_head % Hk
    key = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    counted = counted_keys(valid, b, key, S, HAS_VALID)
    k = tile_of(keys + b * k_b + kh * k_h, k_s, key, S, D, CHANNELS, UPCAST)
    mass = tl.zeros([KEYS], tl.float32)
    part, tiles = tl.program_id(2), tl.cdiv(T, TOKENS)
    for i in range(part * span, tl.minimum(G * tiles, (part + 1) * span)):
        h = kh * G + i // tiles
        token = i % tiles * TOKENS + tl.arange(0, TOKENS)
        query = tile_of(q + b * q_b + h * q_h, q_t, token, T, D, CHANNELS, UPCAST)
        norm = tl.load(lse + (b * Hk * G + h) * T + token, mask=token < T, other=float("inf"))
        mass += tl.sum(weights_of(query, k, norm, counted, scale), axis=0)
    tl.store(masses + (key_head * tl.num_programs(2) + part) * S + key, mass, mask=key < S)


def shared_loop(programs: int, length: int) -> tuple[int, int]:
    """How many programs share a loop of `length` where there are `programs` without that, and what each does of it."""
    span = triton.cdiv(length, min(triton.cdiv(FULL, programs), length))
    return int(triton.cdiv(length, span)), int(span)


def log_sum_exp(
    q: Tensor, keys: Tensor, old: tuple[Tensor, Tensor] | None, valid: Tensor | None, scale: float
) -> Tensor:
    """log sum_s exp(scale * q . keys[s]), fp32 [B, H, T], with some keys replaced by old ones.

    Args:
        q: [B, H, T, D].
        keys: [B, Hk, S, D].
        old: the old keys [B, Hk, n, D] and their slots [B, S] (see `restored`); None: no key is replaced.
        valid: bool [B, S] or None.
        scale: as of `attention_received`.
    """
    q, keys = contiguous_channels(q), contiguous_channels(keys)
    old_keys, slots = old or (keys, keys)
    batch, heads, tokens, channels = q.shape
    tiles = triton.cdiv(tokens, TOKENS)
    parts, span = shared_loop(batch * heads * tiles, triton.cdiv(keys.shape[2], KEYS))
    lse = q.new_empty(parts, batch, heads, tokens, dtype=torch.float32)
    lse_kernel[(batch * heads, tiles, parts)](
        q,
        keys,
        old_keys,
        slots,
        keys if valid is None else valid.contiguous(),
        lse,
        heads,
        tokens,
        keys.shape[2],
        channels,
        span * KEYS,
        scale,
        *q.stride()[:3],
        *keys.stride()[:3],
        *old_keys.stride()[:3],
        G=heads // keys.shape[1],
        HAS_OLD=old is not None,
        **tile_options(valid, q, keys, old_keys),
    )
    return lse[0] if parts == 1 else lse.logsumexp(0)


def key_mass(q: Tensor, keys: Tensor, lse: Tensor, valid: Tensor | None, scale: float) -> Tensor:
    """sum exp(scale * q . keys[s] - lse) over heads and tokens, fp32 [B, S]; a token whose `lse` is +inf does not count."""
    q, keys = contiguous_channels(q), contiguous_channels(keys)
    _, heads, tokens, channels = q.shape
    batch, key_heads, count, _ = keys.shape
    tiles, group = triton.cdiv(count, KEYS), heads // key_heads
    parts, span = shared_loop(batch * key_heads * tiles, group * triton.cdiv(tokens, TOKENS))
    masses = q.new_empty(batch, key_heads, parts, count, dtype=torch.float32)
    key_mass_kernel[(batch * key_heads, tiles, parts)](
        q,
        keys,
        lse.contiguous(),
        keys if valid is None else valid.contiguous(),
        masses,
        key_heads,
        tokens,
        count,
        channels,
        span,
        scale,
        *q.stride()[:3],
        *keys.stride()[:3],
        G=group,
        **tile_options(valid, q, keys),
    )
    return masses.sum((1, 2))


def attention_received(
    queries: Tensor, keys: Tensor, share: Tensor, valid: Tensor | None, scale: float
) -> Tensor:
    lse = log_sum_exp(queries, keys, None, valid, scale)
    return key_mass(queries, keys, lse - share.log()[:, None], valid, scale)  # exp(x - lse) * share


def tile_options(valid: Tensor | None, *operands: Tensor) -> dict[str, int | bool]:
    """The constexprs that the attention kernels share."""
    mixed = len({operand.dtype for operand in operands}) > 1
    return {
        "HAS_VALID": valid is not None,
        "UPCAST": mixed or triton.knobs.runtime.interpret,
        "CHANNELS": max(int(triton.next_power_of_2(operands[0].shape[-1])), 16),
        "TOKENS": TOKENS,
        "KEYS": KEYS,
    }
