"""How alike the attention of a few tokens is before and after an update; letters as in `attention_probe`."""

from typing import Literal

from torch import Tensor
from torch.nn.functional import cosine_similarity

from diffcache.kernels.attention_probe import weights_of
from diffcache.kernels.dispatch import op

EPS = 1e-8


def attention_cosine(
    old: tuple[Tensor, Tensor, Tensor],
    new: tuple[Tensor, Tensor, Tensor],
    valid: Tensor | None,
    scale: float,
    over: Literal["heads", "keys"] = "heads",
) -> Tensor:
    """How alike the tokens' attention is before and after an update, fp32 [B, T]; 1 if it is the same.

    Elastic-Cache (arXiv 2510.14973) recomputes the layers above one where the mean over tokens falls below a threshold. Its
    code takes the cosine over heads, for each token and key, and the mean over keys; the alternative is the cosine over
    keys, and the mean over heads. As there, vectors shorter than 1e-8 count as that long.

    Args:
        old: q [B, H, T, D], keys [B, Hk, S, D] and lse [B, H, T] before.
        new: the same after. To spare a copy of the cache, give it as both keys with the updated slots invalid, then
            the updated rows alone, old and new; weight the two means by their numbers of keys.
        valid: bool [B, S], which keys count, at least one; None for all.
        scale: of both.
        over: what the cosine runs over.

    Raises:
        ValueError: it runs over something else.
    """
    if over not in ("heads", "keys"):
        raise ValueError(f"over={over!r} is not known: use 'heads' or 'keys'.")
    return (
        cosine_over_heads(*old, *new, valid, scale)
        if over == "heads"
        else cosine_over_keys(*old, *new, valid, scale)
    )


@op()
def cosine_over_heads(
    old_q: Tensor,
    old_keys: Tensor,
    old_lse: Tensor,
    new_q: Tensor,
    new_keys: Tensor,
    new_lse: Tensor,
    valid: Tensor | None,
    scale: float,
) -> Tensor:
    """mean over valid keys of the cosine over heads, fp32 [B, T]."""
    old = weights_of(old_q, old_keys, old_lse, valid, scale)
    new = weights_of(new_q, new_keys, new_lse, valid, scale)
    cosines = cosine_similarity(old, new, dim=1, eps=EPS)
    if valid is None:
        return cosines.mean(-1)
    return (cosines * valid[:, None]).sum(-1) / valid.sum(-1, keepdim=True)


@op()
def cosine_over_keys(
    old_q: Tensor,
    old_keys: Tensor,
    old_lse: Tensor,
    new_q: Tensor,
    new_keys: Tensor,
    new_lse: Tensor,
    valid: Tensor | None,
    scale: float,
) -> Tensor:
    """mean over heads of the cosine over valid keys, fp32 [B, T]."""
    old = weights_of(old_q, old_keys, old_lse, valid, scale)
    new = weights_of(new_q, new_keys, new_lse, valid, scale)
    return cosine_similarity(old, new, dim=3, eps=EPS).mean(1)
