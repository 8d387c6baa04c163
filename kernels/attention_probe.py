"""The attention that a few tokens give to each key, without the attention weights of the whole sequence.

Letters: B batch, H query heads, Hk key heads, T tokens, S keys, D channels of a head.
"""

import torch
from torch import Tensor

from diffcache.kernels.dispatch import op


@op()
def attention_received(
    queries: Tensor, keys: Tensor, share: Tensor, valid: Tensor | None, scale: float
) -> Tensor:
    """The attention that each key receives from some rows, weighted by `share` and summed over heads: fp32 [B, S].

    Elastic-Cache (arXiv 2510.14973) computes it of its window in each layer, and tracks the decoded token that receives most.

    Args:
        queries: [B, H, T, D].
        keys: [B, Hk, S, D]; H / Hk query heads share a key head.
        share: fp32 [B, T], how much each row counts; 0 for one that does not.
        valid: bool [B, S], which keys count (False for padding), at least one for each text; None for all.
        scale: usually D ** -0.5.
    """
    return (share[:, None] @ attention_weights(queries, keys, valid, scale).sum(dim=1))[:, 0]


def attention_weights(queries: Tensor, keys: Tensor, valid: Tensor | None, scale: float) -> Tensor:
    """Softmax weights [B, H, T, S] in fp32, which the kernels never store. Arguments as of `attention_received`."""
    return _scores(queries, keys, valid, scale).softmax(dim=-1)


def _scores(q: Tensor, keys: Tensor, valid: Tensor | None, scale: float) -> Tensor:
    """[B, H, T, S] in fp32, -inf at keys that do not count."""
    batch, heads, tokens, channels = q.shape
    # Query heads that share a key head are multiplied with it in one product, so that no key is copied.
    grouped = q.float().reshape(batch, keys.shape[1], -1, channels)
    scores: Tensor = (grouped @ keys.float().mT).view(batch, heads, tokens, keys.shape[2]) * scale
    return scores if valid is None else scores.masked_fill(~valid[:, None, None], -torch.inf)
