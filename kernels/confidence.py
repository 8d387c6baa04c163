"""How sure a language model is of its likeliest token in each row, without storing a softmax over the vocabulary."""

from typing import NamedTuple

import torch
from torch import Tensor

from diffcache.kernels.dispatch import op


class Confidence(NamedTuple):
    """Tensors [rows], with one entry for each row.

    Attributes:
        token: int64, id of the likeliest token; the lowest id among equally likely ones.
        probability: fp32, of that token; NaN where a logit is NaN or +inf, or all are -inf.
        runner_up: fp32, the probability of the second likeliest token; 0 in a vocabulary of one.
        entropy: fp32, in nats.
    """

    token: Tensor
    probability: Tensor
    runner_up: Tensor
    entropy: Tensor


def confidence(logits: Tensor, rows: Tensor | None = None) -> Confidence:
    """What decode rules need of the logits, computed in one pass over them.

    Args:
        logits: [n, vocabulary], floating. Gaps between rows cost no copy.
        rows: int64 [rows], indices of the rows to compute, each from 0 to n - 1; None for all.

    Raises:
        ValueError: logits are not a matrix.
    """
    if logits.ndim != 2:
        raise ValueError(f"logits have {logits.ndim} dimensions, not 2: flatten all but the vocabulary.")
    return Confidence(*top_two(logits, rows))


@op()
def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token of all rows of `logits` [n, vocabulary], and its log-odds in fp32: log(p / (1 - p)).

    Odds grow with the probability p and do not saturate: where p rounds to 1, they still say which row is surer. Inf in a
    vocabulary of one; NaN where a logit is NaN or +inf, or all are -inf.
    """
    logits = logits.float()
    top, token = logits.max(dim=-1, keepdim=True)
    top = torch.where(top.isfinite(), top, torch.nan)
    others = logits.scatter(-1, token, -torch.inf)
    return token[:, 0].contiguous(), top[:, 0] - others.logsumexp(dim=-1)


@op()
def top_two(logits: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The fields of `Confidence`, computed in fp32."""
    logits = (logits if rows is None else logits[rows]).float()
    token = logits.argmax(-1)
    top = logits.amax(-1, keepdim=True)
    below = logits - top
    weight = below.exp()
    total = weight.sum(-1)
    moment = torch.where(weight == 0, 0.0, weight * below).sum(-1)
    rival = below.scatter(-1, token[:, None], -torch.inf).amax(-1)
    return token, 1 / total, rival.exp() / total, total.log() - moment / total
