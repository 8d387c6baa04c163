"""The error model: it predicts the scores of a table from recorded drifts and from tables that were evaluated."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diffcache.schedulers.search.drift import staleness

RIDGE = 0.03
"""Variance of what the features cannot explain, as a share of the losses' variance. Our choice."""

_LEAST_DRIFT = 1e-3
"""Added to drifts before their logarithm, as a share of the largest one."""

_LEAST_SPREAD = 1e-9
"""Smallest standard deviation that divides."""


class ErrorModel:
    """Kernel ridge regression of the loss on a table's staleness. The cost is affine in the table's MACs.

    The features, standardised, are the logarithms of the drift that is held in the whole table, at each tick and at each site, and
    the shares that are computed at each tick and site. The kernel is the linear one plus a squared exponential of length 1, so
    the model is linear far from the tables that it knows. Losses should be logarithmic: minus PSNR, or the log of an error.

    Args:
        drifts: [S, T, T], what was recorded of each site.
        prices: MACs of computing each site once.
    """

    def __init__(self, drifts: Tensor, prices: Sequence[int]) -> None:
        self.drifts = drifts.double() / drifts.max()
        self.prices = torch.tensor(prices, dtype=torch.float64) / sum(prices)

    def fit(self, tables: Tensor, scores: Tensor) -> "FittedModel":
        """Learns from tables, bool [n, T, S], and their scores [n, 2]: loss and cost."""
        features, losses = self.features(tables), scores[:, 0]
        centre = features.mean(0)
        width = features.std(0, correction=0).clamp_min(_LEAST_SPREAD)
        mean, spread = losses.mean(), losses.std(correction=0).clamp_min(_LEAST_SPREAD)
        known = (features - centre) / width
        gram = _kernel(known, known) + RIDGE * torch.eye(len(tables), dtype=torch.float64)
        weights = torch.linalg.solve(gram, (losses - mean) / spread)
        # the default driver's last bits depend on where its workspace lies
        price: Tensor = torch.linalg.lstsq(self.macs(tables), scores[:, 1:], driver="gelsd").solution
        return FittedModel(self, centre, width, known, weights, mean, spread, price)

    def features(self, tables: Tensor) -> Tensor:
        """[n, features] of tables, not yet standardised."""
        stale, computed = staleness(tables, self.drifts), tables.double()
        held = torch.cat([stale.sum((1, 2)).unsqueeze(1), stale.sum(1), stale.sum(2)], 1)
        return torch.cat([torch.log(held + _LEAST_DRIFT), computed.mean(1), computed.mean(2)], 1)

    def macs(self, tables: Tensor) -> Tensor:
        """The share of the full run's MACs and a constant, [n, 2]."""
        share = tables.double().mean(1) @ self.prices
        return torch.stack([share, torch.ones_like(share)], 1)


@dataclass(frozen=True)
class FittedModel:
    """An error model that has learned from n tables.

    Attributes:
        model: whose features it uses.
        centre, width: mean and standard deviation of each feature.
        known: standardised features of the n tables.
        weights: [n], of the kernel.
        mean, spread: mean and standard deviation of the n losses.
        price: [2, 1], of the MACs' share and the constant.
    """

    model: ErrorModel
    centre: Tensor
    width: Tensor
    known: Tensor
    weights: Tensor
    mean: Tensor
    spread: Tensor
    price: Tensor

    def __call__(self, tables: Tensor) -> Tensor:
        """Predicted scores, float64 [n, 2], of tables, bool [n, T, S]."""
        features = (self.model.features(tables) - self.centre) / self.width
        loss = self.mean + self.spread * (_kernel(features, self.known) @ self.weights)
        return torch.cat([loss.unsqueeze(1), self.model.macs(tables) @ self.price], 1)


def _kernel(a: Tensor, b: Tensor) -> Tensor:
    near = torch.exp(-torch.cdist(a, b).square() / (2 * a.shape[1]))
    return a @ b.T / a.shape[1] + near
