"""How sure a language model is of each token that it would commit, without a softmax of the vocabulary's size."""

from typing import NamedTuple

import torch
from torch import Tensor

from diffcache.kernels.dispatch import op


class Confidence(NamedTuple):
    """One entry for each row that was asked for, [rows].

    Attributes:
        token: int64, the likeliest; the lowest id among equals.
        probability: fp32, of that token; NaN where a logit is NaN or +inf, or all are -inf.
        runner_up: fp32, the probability of the second; 0 in a vocabulary of one.
        entropy: fp32, in nats.
    """

    token: Tensor
    probability: Tensor
    runner_up: Tensor
    entropy: Tensor


def confidence(logits: Tensor, rows: Tensor | None = None) -> Confidence:
    """What decode rules ask of the logits, in one pass over the active rows.

    Args:
        logits: [n, vocabulary], floating; read in place where the rows have gaps between them.
        rows: int64 [rows], which of the n to look at, each from 0 to n - 1; None for all.

    Raises:
        ValueError: logits are not a matrix.
    """
    if logits.ndim != 2:
        raise ValueError(f"logits have {logits.ndim} dimensions, not 2: flatten all but the vocabulary.")
    return Confidence(*top_two(logits, rows))


@op()
def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The first two fields of `Confidence`, of all rows of `logits` [n, vocabulary]."""
    logits = logits.float()
    token = logits.argmax(dim=-1, keepdim=True)
    probability = (logits.gather(-1, token) - logits.logsumexp(dim=-1, keepdim=True)).exp()
    return token[:, 0].contiguous(), probability[:, 0].contiguous()


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
