"""What Elastic-Cache and dLLM-Cache measure inside a layer, in plain PyTorch; statistics are in float32."""

import torch
from torch import Tensor


def attention_drift(
    before: Tensor, after: Tensor, share: Tensor, attendable: Tensor | None, over_keys: bool
) -> Tensor:
    """Mean cosine [b] between two sets of attention weights [b, H, n, S]; 1 where no row counts.

    Args:
        share: [b, n], how much each query row counts; adds up to 1, or to 0 where none counts.
        attendable: bool [b, S], the keys that count; None for all.
        over_keys: the cosine runs over the keys of each head; else over heads, as Elastic-Cache's authors coded it.
    """
    if over_keys:
        cosine = _cosine(before, after, dim=3).mean(dim=1)
    else:
        cosine = _cosine(before, after, dim=1)  # 0 at keys that nobody may attend
        keys = cosine.shape[2] if attendable is None else attendable.sum(dim=1, keepdim=True)
        cosine = cosine.sum(dim=2) / keys
    return 1 - ((1 - cosine) * share).sum(dim=1)


def most_attended(received: Tensor, eligible: Tensor, count: int) -> Tensor:
    """Bool [b, S]: eligible positions that are among the `count` which get most attention [L, b, S] in any layer.

    Args:
        eligible: bool [b, S].
    """
    best = received.masked_fill(~eligible, -1.0).topk(min(count, eligible.shape[1]), dim=2)
    chosen = torch.zeros_like(eligible).expand_as(received).scatter(2, best.indices, best.values >= 0)
    return chosen.any(dim=0)


def _cosine(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """Cosine along `dim`; 0 where either is all zero. Several times faster on CPU than PyTorch's own."""
    norms = a.square().sum(dim) * b.square().sum(dim)
    return (a * b).sum(dim) * norms.clamp(min=torch.finfo(a.dtype).tiny).rsqrt()
