"""The likeliest token of each row and how sure a language model is of it, without storing a softmax over the vocabulary."""

import torch
from torch import Tensor

from diffcache.kernels.dispatch import op


@op()
def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token of all rows of `logits` [n, vocabulary], and its log-odds in fp32: log(p / (1 - p)).

    The lowest of equally likely tokens is taken. Odds grow with the probability p and do not saturate: where p rounds to 1,
    they still say which row is surer. Inf in a vocabulary of one; NaN where a logit is NaN or +inf, or all are -inf.
    """
    logits = logits.float()
    top, token = logits.max(dim=-1, keepdim=True)
    top = torch.where(top.isfinite(), top, torch.nan)
    others = logits.scatter(-1, token, -torch.inf)
    return token[:, 0].contiguous(), top[:, 0] - others.logsumexp(dim=-1)
