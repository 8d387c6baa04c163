"""Decode rules: which of the candidates are committed, given a score of each. They do not depend on the cache."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


class Rule(ABC):
    """Chooses among candidates. A score is the log-odds of a probability, or whatever else ranks them.

    Attributes:
        may_skip: a call may commit nothing.
    """

    may_skip = False

    @abstractmethod
    def commit(self, score: Tensor, quota: Tensor) -> Tensor:
        """Bool [b, S]: what is written now.

        Args:
            score: [b, S], -inf for what is no candidate.
            quota: int64 [b, 1], what a fixed number of steps asks of this one.
        """


@dataclass(frozen=True)
class Quota(Rule):
    """Those with the highest scores, as many as a fixed number of steps asks (low-confidence remasking; LLaDA, alg. 5).

    Attributes:
        most: no step asks for more than so many.
    """

    most: int

    def commit(self, score: Tensor, quota: Tensor) -> Tensor:
        return highest(score) if self.most == 1 else ranks(score) < quota


@dataclass(frozen=True)
class Threshold(Rule):
    """The surest ones, and all whose probability reaches `threshold` (Fast-dLLM, alg. 1; published: 0.9).

    Attributes:
        least: so many are committed in any case (LLaDA2's num_to_transfer).
    """

    threshold: float
    least: int = 1

    def commit(self, score: Tensor, quota: Tensor) -> Tensor:
        surest = highest(score) if self.least == 1 else ranks(score) < self.least
        return surest | (score >= log_odds(self.threshold))


@dataclass(frozen=True)
class Factor(Rule):
    """The surest ones, as long as the n-th has a probability of at least 1 - factor / (n + 1); one in any case.

    Fast-dLLM v2's rule: the more tokens are committed together, the surer the model must be of each.
    """

    factor: float

    def commit(self, score: Tensor, quota: Tensor) -> Tensor:
        ordered = score.sort(dim=1, descending=True).values
        needed = [log_odds(1 - self.factor / (n + 1)) for n in range(2, ordered.shape[1] + 1)]
        reaches = ordered[:, 1:] >= torch.tensor(needed, dtype=score.dtype, device=score.device)
        run = reaches.cumprod(dim=1).sum(dim=1, keepdim=True) + 1  # the first is committed in any case
        return ranks(score) < run


@dataclass(frozen=True)
class Chance(Rule):
    """Each candidate with the probability that a time schedule gives the step (Dream's `origin`).

    Scores are uniform numbers in (0, 1).

    Attributes:
        shares: probability of each step of a block; the last step's is 1.
    """

    shares: tuple[float, ...]
    may_skip = True

    def commit(self, score: Tensor, quota: Tensor) -> Tensor:
        """Here `quota` is the number of the step."""
        shares = torch.tensor(self.shares, dtype=score.dtype, device=score.device)
        return (score > -torch.inf) & (score < shares[quota.clamp(max=len(shares) - 1)])


def log_odds(probability: float) -> float:
    """log(p / (1 - p)); -inf and inf outside of (0, 1)."""
    if probability <= 0:
        return -math.inf
    return math.inf if probability >= 1 else math.log(probability) - math.log1p(-probability)


def highest(score: Tensor) -> Tensor:
    """Bool [b, S]: the largest entry of each row of [b, S], the first of equal ones."""
    top = score.argmax(dim=1, keepdim=True)
    return torch.zeros_like(score, dtype=torch.bool).scatter_(1, top, True)


def ranks(score: Tensor) -> Tensor:
    """The rank of each entry of [b, S] in its row, 0 for the largest; of equal ones the earlier comes first."""
    order = score.argsort(dim=1, descending=True, stable=True)
    counted = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, counted)
