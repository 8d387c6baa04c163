"""The attention that a few tokens give to each key, without the attention weights of the whole sequence.

Letters: B batch, H query heads, Hk key heads, T tokens, S keys, D channels of a head.
"""

import torch
from torch import Tensor

from diffcache.kernels.dispatch import op


@op()
def attention_lse(q: Tensor, keys: Tensor, valid: Tensor | None, scale: float) -> Tensor:
    """log sum_s exp(scale * q . keys[s]), fp32 [B, H, T]: what a fused attention computes but need not return.

    Args:
        q: [B, H, T, D].
        keys: [B, Hk, S, D]; H / Hk query heads share a key head.
        valid: bool [B, S], which keys count (False for padding); None for all.
        scale: usually D ** -0.5.
    """
    return _scores(q, keys, valid, scale).logsumexp(-1)


@op()
def key_mass(q: Tensor, keys: Tensor, lse: Tensor, valid: Tensor | None, scale: float) -> Tensor:
    """The attention that each key receives from the tokens, summed over heads and tokens: fp32 [B, S].

    Elastic-Cache (arXiv 2510.14973) tracks the decoded token that receives most from the window.

    Args:
        q: [B, H, T, D].
        keys: [B, Hk, S, D].
        lse: fp32 [B, H, T], from `attention_lse`; +inf for a token that does not count, such as a repeated one.
        valid: bool [B, S] or None.
        scale: the one that `lse` was computed with.
    """
    return (_scores(q, keys, valid, scale) - lse[..., None]).exp().sum((1, 2))


@op()
def attention_received(
    queries: Tensor, keys: Tensor, share: Tensor, valid: Tensor | None, scale: float
) -> Tensor:
    """The attention that each key receives from some rows, weighted by `share` and summed over heads: fp32 [B, S].

    Elastic-Cache computes it of its window in each layer: `key_mass` with the rows' own log-sum-exp.

    Args:
        queries: [B, H, T, D].
        keys: [B, Hk, S, D].
        share: fp32 [B, T], how much each row counts; 0 for one that does not.
        valid: bool [B, S] or None, at least one for each text.
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
