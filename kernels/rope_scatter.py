"""Rotary embedding of the active rows' queries and keys, and their keys and values into the cache.

B batch, H query heads, Hk key heads, n active rows, S slots of the cache, D channels of a head, P positions of the tables,
R <= D rotated channels.
"""

import torch
from torch import Tensor

from diffcache.kernels.dispatch import op

EPS = 1e-20


def rope_scatter(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    positions: Tensor | None = None,
    drift: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Writes rotated keys, and values, into the slots of the active rows; returns rotated queries.

    Channels i and i + R/2 of a head are rotated by the angle of (position, i) in fp32 and rounded once; channels from R on
    pass unchanged (RoFormer, arXiv 2104.09864, eq. 34, halves instead of neighbours). Rows may repeat, as long as the
    repeats are equal. A row outside 0..S-1 (-1 by convention) is skipped: nothing is written, its query is not rotated.

    Args:
        q: [B, H, n, D].
        k: [B, Hk, n, D].
        v: [B, Hk, n, D].
        rows: int32 or int64 [B, n], the slots.
        cos: fp32 [P, R/2], by position.
        sin: likewise.
        keys: [B, Hk, S, D], the cache, written in place; the channels of a head must be contiguous.
        values: likewise.
        positions: int32 or int64 [B, n], each below P; None where slots are positions.
        drift: compare with the rows that are overwritten, too.

    Returns:
        Rotated queries [B, H, n, D], contiguous, and with `drift` fp32 [2, B, n]: the cosine, over all heads and
        channels, of the new with the old key, and of the new with the old value; 1 for a skipped row, 0 for a slot that
        held zeros.

    Raises:
        ValueError: the cache's channels are not contiguous.
    """
    if keys.stride(-1) != 1 or values.stride(-1) != 1:
        raise ValueError("A cache is written in place: lay its keys and values out with contiguous channels.")
    positions = rows if positions is None else positions
    cosines = row_drift(k, v, rows, positions, cos, sin, keys, values) if drift else None
    return rotate_and_scatter(q, k, v, rows, positions, cos, sin, keys, values), cosines


def _queries_like(q: Tensor, *_: Tensor) -> Tensor:
    return q.new_empty(q.shape)


@op(mutates=("keys", "values"), fake=_queries_like)
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
    """`rope_scatter` without the comparison."""
    valid = (rows >= 0) & (rows < keys.shape[2])
    cos, sin = _angles(valid, positions, cos, sin)
    b, i = valid.nonzero(as_tuple=True)
    slots = rows[b, i].long()
    keys[b, :, slots] = _rotate(k, cos, sin)[b, :, i].to(keys.dtype)
    values[b, :, slots] = v[b, :, i].to(values.dtype)
    return _rotate(q, cos, sin).to(q.dtype).contiguous()


@op()
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
    """The cosines that `rope_scatter` returns, fp32 [2, B, n]; to be taken before the rows are overwritten."""
    valid = (rows >= 0) & (rows < keys.shape[2])
    cos, sin = _angles(valid, positions, cos, sin)
    slots = torch.where(valid, rows, 0).long()[:, None, :, None].expand(k.shape)
    cosines = [
        _cosine(_rotate(k, cos, sin), keys.gather(2, slots)),
        _cosine(v, values.gather(2, slots)),
    ]
    return torch.stack([torch.where(valid, cosine, 1.0) for cosine in cosines])


def _angles(valid: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [B, 1, n, R/2] of the rows' angles, 0 for the skipped."""
    at = torch.where(valid, positions, 0)
    rotated = valid[..., None]
    return torch.where(rotated, cos[at], 1.0)[:, None], torch.where(rotated, sin[at], 0.0)[:, None]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, heads, n, D] in fp32, its first R channels rotated."""
    half = cos.shape[-1]
    first, second, rest = x.float().tensor_split([half, 2 * half], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def _cosine(new: Tensor, old: Tensor) -> Tensor:
    """[B, Hk, n, D] twice -> [B, n]."""
    new, old = new.float(), old.float()
    norms = new.square().sum((1, 3)).sqrt() * old.square().sum((1, 3)).sqrt()
    return (new * old).sum((1, 3)) / norms.clamp(min=EPS)
