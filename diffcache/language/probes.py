"""What Elastic-Cache and dLLM-Cache measure inside a layer, in plain PyTorch; statistics are in float32."""

import torch
from torch import Tensor


def attention_weights(queries: Tensor, keys: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """Softmax weights [b, H, n, S] of queries [b, H, n, D] over keys [b, K, S, D]; H is a multiple of K.

    Args:
        mask: bool [b, 1, 1, S], False where nothing may be attended; None for no such place.
    """
    batch, heads, rows, size = queries.shape
    grouped = queries.float().reshape(
        batch, keys.shape[1], -1, size
    )  # the heads of a group ask the same keys
    scores: Tensor = (grouped @ keys.float().mT).view(batch, heads, rows, -1) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(dim=-1)


def attention_drift(
    before: Tensor, after: Tensor, counted: Tensor, attendable: Tensor | None, over_keys: bool
) -> Tensor:
    """Mean cosine [b] between two sets of attention weights [b, H, n, S]; 1 where nothing is counted.

    Args:
        counted: bool [b, n], the query rows that count.
        attendable: bool [b, S], the keys that count; None for all.
        over_keys: the cosine runs over the keys of each head; else over heads, as Elastic-Cache's authors coded it.
    """
    if over_keys:
        cosine = _cosine(before, after, dim=3).mean(dim=1)
        weight = counted.float()
    else:
        cosine = _cosine(before, after, dim=1)
        keys = torch.ones_like(cosine[:, 0]) if attendable is None else attendable.float()
        weight = counted.float()[:, :, None] * keys[:, None, :]
        cosine, weight = cosine.flatten(1), weight.flatten(1)
    total = weight.sum(dim=1)
    return torch.where(total > 0, (cosine * weight).sum(dim=1) / total.clamp(min=1), 1.0)


def most_attended(weights: Tensor, counted: Tensor, eligible: Tensor, count: int) -> Tensor:
    """Bool [b, S]: the `count` eligible positions that get most of the attention [b, H, n, S] of counted rows.

    Args:
        counted: bool [b, n].
        eligible: bool [b, S].
    """
    importance = (weights * counted[:, None, :, None]).sum(dim=(1, 2)).masked_fill(~eligible, -1.0)
    best = importance.topk(min(count, importance.shape[1]), dim=1)
    return torch.zeros_like(eligible).scatter(1, best.indices, best.values >= 0)


def value_similarity(new: Tensor, old: Tensor) -> Tensor:
    """Cosine [b, n] between new and stored values [b, K, n, D], over heads and their numbers together."""
    new, old = (values.transpose(1, 2).flatten(2).float() for values in (new, old))
    return _cosine(new, old, dim=2)


def _cosine(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """Cosine along `dim`; 0 where either is all zero. Several times faster on CPU than PyTorch's own."""
    norms = a.square().sum(dim) * b.square().sum(dim)
    return (a * b).sum(dim) * norms.clamp(min=torch.finfo(a.dtype).tiny).rsqrt()
