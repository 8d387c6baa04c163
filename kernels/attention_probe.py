"""The attention that a few tokens give to each key, from its log-sum-exp: no weights of sequence by sequence.

B batch, H query heads, Hk key heads, T tokens that are looked at, S keys, D channels of a head.
"""

import torch
from torch import Tensor

from diffcache.kernels.dispatch import op


@op()
def attention_lse(q: Tensor, keys: Tensor, valid: Tensor | None, scale: float) -> Tensor:
    """log sum_s exp(scale * q . keys[s]), fp32 [B, H, T], for attention that does not return it.

    Args:
        q: [B, H, T, D].
        keys: [B, Hk, S, D], each serving H / Hk query heads.
        valid: bool [B, S], which keys count (False for padding); None for all.
        scale: usually D ** -0.5.
    """
    return _scores(q, keys, valid, scale).logsumexp(-1)


@op()
def key_mass(q: Tensor, keys: Tensor, lse: Tensor, valid: Tensor | None, scale: float) -> Tensor:
    """The attention that each key gets from the tokens, summed over heads and tokens: fp32 [B, S].

    Elastic-Cache (arXiv 2510.14973) tracks the decoded token that gets most from the window.

    Args:
        q: [B, H, T, D].
        keys: [B, Hk, S, D].
        lse: fp32 [B, H, T], as of `attention_lse`; +inf for a token that does not count, such as a repeated one.
        valid: bool [B, S] or None.
        scale: as of `lse`.
    """
    return (_scores(q, keys, valid, scale) - lse[..., None]).exp().sum((1, 2))


@op()
def attention_received(
    queries: Tensor, keys: Tensor, share: Tensor, valid: Tensor | None, scale: float
) -> Tensor:
    """The attention that each key gets from some rows that count by their share, summed over heads: fp32 [B, S].

    What Elastic-Cache asks of its window in each layer: `key_mass` of the rows' own log-sum-exp.

    Args:
        queries: [B, H, T, D].
        keys: [B, Hk, S, D].
        share: fp32 [B, T], how much each row counts; 0 for one that does not.
        valid: bool [B, S] or None, at least one for each text.
        scale: usually D ** -0.5.
    """
    return (share[:, None] @ attention_weights(queries, keys, valid, scale).sum(dim=1))[:, 0]


def attention_weights(queries: Tensor, keys: Tensor, valid: Tensor | None, scale: float) -> Tensor:
    """Softmax weights [B, H, T, S] in fp32: what the kernels do without. Arguments as of `attention_received`."""
    return _scores(queries, keys, valid, scale).softmax(dim=-1)


def _scores(q: Tensor, keys: Tensor, valid: Tensor | None, scale: float) -> Tensor:
    """[B, H, T, S] in fp32, -inf at keys that do not count."""
    batch, heads, tokens, channels = q.shape
    # Heads that share keys stand side by side, so that no key is copied.
    grouped = q.float().reshape(batch, keys.shape[1], -1, channels)
    scores: Tensor = (grouped @ keys.float().mT).view(batch, heads, tokens, keys.shape[2]) * scale
    return scores if valid is None else scores.masked_fill(~valid[:, None, None], -torch.inf)
