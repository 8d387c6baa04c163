"""Decode rules: which of the candidates are committed, given the model's confidence in each. They do not depend on the cache."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from diffcache.kernels.confidence import likeliest


class Rule(ABC):
    """Chooses among candidates. Each text commits at least one as long as it has a candidate."""

    @abstractmethod
    def commit(self, confidence: Tensor, quota: Tensor) -> Tensor:
        """Bool [b, S]: what is written now.

        Args:
            confidence: [b, S], -inf for what is no candidate.
            quota: int64 [b, 1], what a fixed number of steps asks of this one.
        """


@dataclass(frozen=True)
class Quota(Rule):
    """The most confident ones, as many as a fixed number of steps asks (low-confidence remasking; LLaDA, alg. 5).

    Attributes:
        most: no step asks for more than so many.
    """

    most: int

    def commit(self, confidence: Tensor, quota: Tensor) -> Tensor:
        return most_confident(confidence) if self.most == 1 else ranks(confidence) < quota


@dataclass(frozen=True)
class Threshold(Rule):
    """The most confident one, and all whose confidence reaches `threshold` (Fast-dLLM, alg. 1; published: 0.9)."""

    threshold: float

    def commit(self, confidence: Tensor, quota: Tensor) -> Tensor:
        return most_confident(confidence) | (confidence >= self.threshold)


@dataclass(frozen=True)
class Factor(Rule):
    """The most confident ones, as long as the n-th has a confidence of at least 1 - factor / (n + 1); one in any case.

    Fast-dLLM v2's rule: the more tokens are committed together, the more confident the model must be in each.
    """

    factor: float

    def commit(self, confidence: Tensor, quota: Tensor) -> Tensor:
        ordered = confidence.sort(dim=1, descending=True).values
        count = torch.arange(1, ordered.shape[1] + 1, device=ordered.device)
        reaches = ordered >= 1 - self.factor / (count + 1)
        run = reaches[:, 1:].cumprod(dim=1).sum(dim=1, keepdim=True) + 1  # the first is committed in any case
        return ranks(confidence) < run


def most_confident(confidence: Tensor) -> Tensor:
    """Bool [b, S]: the largest entry of each row of [b, S], the first of equal ones."""
    top = confidence.argmax(dim=1, keepdim=True)
    return torch.zeros_like(confidence, dtype=torch.bool).scatter_(1, top, True)


def ranks(confidence: Tensor) -> Tensor:
    """The rank of each entry of [b, S] in its row, 0 for the largest; of equal ones the earlier comes first."""
    order = confidence.argsort(dim=1, descending=True, stable=True)
    counted = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, counted)


def draw(
    logits: Tensor, mask_id: int, temperature: float, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Tokens [b, m] and their probabilities, float32 [b, m], of logits [b, m, V]. The mask is never drawn: its logit is
    overwritten.

    Args:
        temperature: 0 takes the most likely token; else Gumbel noise is added. The probability is that without noise.
    """
    logits.select(-1, mask_id).fill_(-torch.inf)
    if temperature == 0:
        token, sure = likeliest(logits.flatten(0, 1))
        return token.view(logits.shape[:2]), sure.view(logits.shape[:2])
    logits = logits.float()
    uniform = torch.rand(logits.shape, generator=generator, device=logits.device)
    noisy = logits - uniform.clamp_(min=1e-20).log_().neg_().log_().mul_(temperature)
    tokens = noisy.argmax(dim=-1, keepdim=True)
    probability = (logits.gather(-1, tokens) - logits.logsumexp(dim=-1, keepdim=True)).exp_()
    return tokens[..., 0], probability[..., 0]


def quota(masked: Tensor, step: Tensor, steps: int) -> Tensor:
    """How many tokens each `step` [n] of `steps` commits, int64 [b, n], at least 1; `masked` [b, S] as the block began."""
    total = masked.sum(dim=1, keepdim=True)
    return (total // steps + (step < total % steps)).clamp(min=1)
