"""The learned router: a score for each tick and site, the gate that trains it, and its export to a table."""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor, nn

from diffcache.schedulers.errors import ConfigError

BOUND = 5.0
"""Logits stay within plus and minus this."""


class Router(nn.Module):
    """Scores r = sigmoid(logits), [T, S], that do not depend on the input; a site is computed where r > threshold.

    The first tick is always computed. Rows are in the order of execution (the published code's run backwards).

    Args:
        logits: [T, S]; published: drawn from a standard normal distribution.
        threshold: published: 0.1, for soft mixing.

    Raises:
        ConfigError: a threshold that is not between 0 and 1.
    """

    def __init__(self, logits: Tensor, threshold: float = 0.5) -> None:
        super().__init__()
        if not 0 < threshold < 1:
            raise ConfigError(f"threshold: {threshold} is not between 0 and 1.")
        self.logits = nn.Parameter(logits.detach().clone().float())
        self.threshold = threshold

    @classmethod
    def of_table(cls, table: Tensor, threshold: float = 0.5, confidence: float = 2.5) -> "Router":
        """A router that begins at a table, bool [T, S]: its logits stand that far on either side of the threshold."""
        return cls(torch.where(table, confidence, -confidence) + _logit(threshold), threshold)

    def scores(self) -> Tensor:
        """r, [T, S]: the soft scores, from which another budget can be cut later."""
        return torch.cat([torch.ones_like(self.logits[:1]), self.logits[1:].sigmoid()])

    def table(self) -> Tensor:
        """What is computed, bool [T, S]."""
        return self.scores().detach() > self.threshold

    def table_within(self, prices: Sequence[int], budget: int) -> Tensor:
        """What a budget pays for, see `cut`."""
        return cut(self.scores().detach(), prices, budget)

    @torch.no_grad()
    def clamp_(self) -> None:
        """Brings the logits back within their bound; called after every update."""
        self.logits.clamp_(-BOUND, BOUND)


class Gates:
    """The cache in the training loop: what each site holds during one run of a student.

    Call it with what a site has just computed, before the gate of its residual, and with what tells apart the several
    tensors of one site (guidance passes, streams). It returns that or what is held, as
    inference will, and lends the score the gradient of r * fresh + (1 - r) * held (straight-through). The published code
    mixes softly in training and thresholds afterwards, so that it trains another network than it exports; and it
    holds a detached value, so that a refresh is credited with its own tick alone. Here what is held stays connected to
    the score that refreshed it, though to nothing before that.

    Args:
        scores: [T, S], differentiable.
        threshold: as the router's.
        forced: a tick at which everything is computed, besides the first.

    Attributes:
        tick: where the run stands; whoever runs it sets it.
    """

    def __init__(self, scores: Tensor, threshold: float, forced: int | None = None) -> None:
        self.tick = 0
        self._scores = scores
        self._computes = (scores > threshold).tolist()
        self._forced = forced
        self._held: dict[tuple[int, Hashable], Tensor] = {}

    def __call__(self, site: int, fresh: Tensor, lane: Hashable = None) -> Tensor:
        held = self._held.get((site, lane))
        if held is None or self.tick == self._forced:
            self._held[site, lane] = fresh.detach()
            return fresh
        score = self._scores[self.tick, site].to(fresh.dtype)
        lent = (score - score.detach()) * (fresh - held).detach()  # zero, with a gradient
        if not self._computes[self.tick][site]:
            return held + lent
        self._held[site, lane] = fresh.detach() + lent
        return fresh + lent


def cut(scores: Tensor, prices: Sequence[int], budget: int) -> Tensor:
    """The places of highest score that a budget pays for, bool [T, S], in the order of their scores.

    Args:
        scores: [T, S], 1 at the first tick.
        prices: cost of computing each site once.
        budget: cost of the whole run.

    Raises:
        ConfigError: the budget does not pay for the first tick.
    """
    if sum(prices) > budget:
        raise ConfigError(f"budget: {budget} does not pay for the first tick; give at least {sum(prices)}.")
    order = scores.flatten().argsort(descending=True, stable=True)
    paid = torch.tensor(prices).repeat(len(scores))[order].cumsum(0)
    table = torch.zeros(scores.numel(), dtype=torch.bool)
    table[order[paid <= budget]] = True
    return table.view_as(scores)


def _logit(share: float) -> Tensor:
    return torch.logit(torch.tensor(share))
