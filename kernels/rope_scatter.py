"""Rotates the queries and keys of the active rows, and writes their keys and values into the cache.

Letters: B batch, H query heads, Hk key heads, n active rows, S slots of the cache, D channels of a head, R <= D rotated
channels.
"""

import torch
from torch import Tensor

from diffcache.kernels.dispatch import op


def signed(sin: Tensor) -> Tensor:
    """Sines [..., R] as `rope_scatter` takes them: the first half negated."""
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
    """Writes rotated keys, and values, into the active rows' slots; returns rotated queries with the strides of `q`.

    Channels i and i + R/2 of a head are rotated by the row's angle i; channels from R on stay the same (RoFormer, arXiv
    2104.09864, eq. 34, with halves instead of neighbours). The result equals the models' own to the bit: it is
    x * cos + (-x2, x1) * sin in the promoted dtype of heads and tables, where each product and the sum is rounded to that
    dtype, and the result to the heads' dtype.

    Args:
        q: [B, H, n, D].
        k: [B, Hk, n, D].
        v: [B, Hk, n, D].
        cos: [1 or B, n, R], of each row's position.
        sin: likewise, from `signed`.
        rows: int32 or int64 [B, n], the rows' slots. Rows with one slot must be equal. None: row i has
            slot i.
        keys: [B, Hk, S, D], the cache, or n slots of it; written in place.
        values: likewise.
    """
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rotated = _rotate(k, cos, sin)
    if rows is None:
        keys.copy_(rotated)
        values.copy_(v)
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
