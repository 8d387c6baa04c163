"""Rotary embedding of the active rows' queries and keys, and their keys and values into the cache.

B batch, H query heads, Hk key heads, n active rows, S slots of the cache, D channels of a head, R <= D rotated channels.
"""

import torch
from torch import Tensor

from diffcache.kernels.dispatch import op


def signed(sin: Tensor) -> Tensor:
    """Sines [..., R] as `rope_scatter` takes them: negated in the first half."""
    first, second = sin.chunk(2, dim=-1)
    return torch.cat([-first, second], dim=-1)


def _laid_out_like_queries(q: Tensor, *_: Tensor | None) -> Tensor:
    return torch.empty_like(q)


@op(mutates=("keys", "values"), fake=_laid_out_like_queries)
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
    """Writes rotated keys, and values, into the slots of the active rows; returns rotated queries, laid out like `q`.

    Channels i and i + R/2 of a head are rotated by the row's angle i, those from R on pass unchanged (RoFormer, arXiv
    2104.09864, eq. 34, halves instead of neighbours). It is done as models do it, to the bit: x * cos + (-x2, x1) * sin in
    the precision that heads and tables have together, each product and the sum rounded to it, and then to the heads' own.

    Args:
        q: [B, H, n, D].
        k: [B, Hk, n, D].
        v: [B, Hk, n, D].
        cos: [1 or B, n, R], of each row's position.
        sin: likewise, `signed`.
        rows: int32 or int64 [B, n], the slots. Repeated ones must come with equal values; -1 is skipped, which writes
            nothing. None for n slots in order.
        keys: [B, Hk, S, D], the cache or n slots of it, written in place.
        values: likewise.
    """
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rotated = _rotate(k, cos, sin)
    if rows is None:
        keys.copy_(rotated)
        values.copy_(v)
    elif rows.numel() and int(rows.min()) < 0:
        b, i = (rows >= 0).nonzero(as_tuple=True)
        slots = rows[b, i].long()
        keys[b, :, slots] = rotated[b, :, i].to(keys.dtype)
        values[b, :, slots] = v[b, :, i].to(values.dtype)
    else:
        slots = rows.long().unsqueeze(1).unsqueeze(3).expand(k.shape)
        keys.scatter_(2, slots, rotated.to(keys.dtype))
        values.scatter_(2, slots, v.to(values.dtype))
    return _rotate(q, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, heads, n, D], its first R channels rotated by tables [1 or B, 1, n, R]."""
    size = cos.shape[-1]
    if size < x.shape[-1]:
        rotated = x.clone()
        rotated[..., :size] = _rotate(x[..., :size], cos, sin)
        return rotated
    return (x * cos).add_(x.roll(size // 2, -1) * sin).to(x.dtype)
