"""The learned router: a score for each tick and site, the gates that train it, and its export to a table."""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor, nn

from diffcache.schedulers.errors import ConfigError

BOUND = 5.0
"""Largest absolute value of a logit, as published."""

THRESHOLD = 0.5
"""A site is computed where its score is above this. Published (HarmoniCa): 0.1, for soft mixing."""


class Router(nn.Module):
    """Scores r = sigmoid(logits), [T, S], that do not depend on the input; a site is computed where r > `THRESHOLD`.

    The first tick is always computed. Rows are in the order of execution; in the published code they are in reverse.

    Args:
        logits: [T, S]. Published: drawn from a standard normal distribution.
    """

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.detach().clone().float())

    @classmethod
    def of_table(cls, table: Tensor, confidence: float = 2.5) -> "Router":
        """A router with this table, bool [T, S]: its logits are `confidence` above or below zero, the threshold's."""
        return cls(torch.where(table, confidence, -confidence))

    def scores(self) -> Tensor:
        """r, [T, S]. `within_budget` makes tables of other budgets from them."""
        return torch.cat([torch.ones_like(self.logits[:1]), self.logits[1:].sigmoid()])

    def table(self) -> Tensor:
        """What is computed, bool [T, S]."""
        return self.scores().detach() > THRESHOLD

    @torch.no_grad()
    def clamp_(self) -> None:
        """Brings the logits back within `BOUND`; called after every update."""
        self.logits.clamp_(-BOUND, BOUND)


class Gates:
    """The cache of a student in training: what each site holds during one run.

    A gate takes what its site has just computed, and returns this or the held value, exactly as inference will. The score gets
    the gradient of r * fresh + (1 - r) * held (a straight-through estimator). Two things differ from the published code:

    - It mixes both values in training and applies the threshold afterwards, so it trains another network than it exports.
    - It detaches held values, so a refresh gets the gradient of its own tick only. Here a held value keeps the gradient to the
      score that refreshed it, but to nothing before that.

    Args:
        scores: [T, S], differentiable.
        forced: a tick at which everything is computed; the first always is.

    Attributes:
        tick: the tick of the run. The loop sets it.
    """

    def __init__(self, scores: Tensor, forced: int | None = None) -> None:
        self.tick = 0
        self._scores = scores
        self._computes = (scores > THRESHOLD).tolist()
        self._forced = forced
        self._held: dict[tuple[int, Hashable], Tensor] = {}

    def __call__(self, site: int, fresh: Tensor, key: Hashable = None) -> Tensor:
        """What the run continues with.

        Args:
            site: index of the site.
            fresh: what it has just computed, before the gate of its residual.
            key: tells apart the tensors of one site, such as those of several guidance passes or streams.
        """
        held = self._held.get((site, key))
        if held is None or self.tick == self._forced:
            self._held[site, key] = fresh.detach()
            return fresh
        score = self._scores[self.tick, site].to(fresh.dtype)
        gradient = (score - score.detach()) * (fresh - held).detach()  # zero, but it carries the gradient
        if not self._computes[self.tick][site]:
            return held + gradient
        self._held[site, key] = fresh.detach() + gradient
        return fresh + gradient


def within_budget(scores: Tensor, prices: Sequence[int], budget: int) -> Tensor:
    """The table, bool [T, S], that computes by falling score until the budget is spent.

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
