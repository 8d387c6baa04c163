"""How much attention changes when rows of the cache are replaced (Elastic-Cache); letters as in `attention_probe`."""

import torch
from torch import Tensor

from diffcache.kernels.cosine import cosine
from diffcache.kernels.dispatch import op


@op()
def attention_drift(
    queries: Tensor,
    share: Tensor,
    old_queries: Tensor,
    keys: Tensor,
    rows: Tensor,
    old_keys: Tensor,
    valid: Tensor | None,
    scale: float,
    over_keys: bool,
) -> tuple[Tensor, Tensor]:
    """The attention that each key receives from W rows, and the likeness of T tokens' attention before and after an update.

    Elastic-Cache (arXiv 2510.14973) recomputes all layers above one whose mean cosine over tokens is below a threshold. Its
    code takes the cosine over heads for each token and key, and the mean over keys. With `over_keys` it is the cosine over
    keys for each token and head, and the mean over heads. Of the keys before the update, only the overwritten rows are
    needed.

    Args:
        queries: [B, H, W + T, D] after the update: those of the rows, then those of the tokens.
        share: fp32 [B, W], how much each row counts, as for `attention_received`.
        old_queries: [B, H, T, D], the tokens' queries before the update.
        keys: [B, Hk, S, D] after the update.
        rows: int32 or int64 [B, n], the indices of the overwritten keys; those of a repeated index must be equal.
        old_keys: [B, Hk, n, D], the keys in these rows before the update.
        valid: bool [B, S], which keys count, at least one for each text; None for all.
        scale: usually D ** -0.5.
        over_keys: take the cosine over keys, not over heads.

    Returns:
        `attention_received` of the rows, fp32 [B, S], and the tokens' mean cosines, fp32 [B, T]: 1 where nothing changed.
    """
    (batch, heads, tokens, channels), (key_heads, count) = old_queries.shape, keys.shape[1:3]
    asked = torch.cat([old_queries, queries], dim=2).float().mul_(scale)
    grouped = asked.reshape(batch, key_heads, -1, channels)
    scores, old_scores = (
        (grouped @ k.float().mT).view(batch, heads, asked.shape[2], k.shape[2]) for k in (keys, old_keys)
    )
    at = rows.long().unsqueeze(1).unsqueeze(1).expand(batch, heads, tokens, -1)
    scores.scatter_(3, at, old_scores)  # the index has only the old queries' rows, so only theirs are written
    if valid is not None:
        scores.masked_fill_(~valid[:, None, None], -torch.inf)
    weights = scores.softmax(dim=-1)
    old, window, new = weights.split_with_sizes([tokens, share.shape[1], tokens], dim=2)
    received = (share[:, None] @ window.sum(dim=1))[:, 0]
    if over_keys:
        return received, cosine(old, new, 3).mean(dim=1)
    counted = count if valid is None else valid.sum(dim=1, keepdim=True)
    return received, cosine(old, new, 1).sum(dim=2) / counted
