"""The error model: what a table costs, foretold from the recorder's drifts and from what was evaluated."""

from collections.abc import Sequence

import torch
from torch import Tensor

from diffcache.schedulers.search.drift import staleness

_LEAST = 1e-3


class ErrorModel:
    """Kernel ridge regression of the loss on a table's staleness; the cost is affine in its MACs.

    Features, standardised: for the whole table, each tick and each site, the logarithm of the drift held there, and for
    each tick and site the share that is computed. The kernel is the linear one plus a squared exponential of length 1,
    so that the model is linear where it knows little. Losses should be logarithmic (minus PSNR, log of the error).

    Args:
        drifts: [S, T, T], what the recorder measured of each site.
        prices: MACs of computing each site once.
        ridge: variance of what the features cannot explain, as a share of the losses' variance.
    """

    def __init__(self, drifts: Tensor, prices: Sequence[int], ridge: float = 0.03) -> None:
        self.drifts = drifts.double() / drifts.max()
        self.prices = torch.tensor(prices, dtype=torch.float64) / sum(prices)
        self.ridge = ridge

    def fit(self, tables: Tensor, scores: Tensor) -> None:
        """Learns from tables, bool [n, T, S], and their scores [n, 2]: loss and cost."""
        features = self._features(tables)
        self._centre, self._width = features.mean(0), features.std(0, correction=0).clamp_min(1e-9)
        self._known = (features - self._centre) / self._width
        self._mean, self._spread = scores[:, 0].mean(), scores[:, 0].std(correction=0).clamp_min(1e-9)
        gram = _kernel(self._known, self._known) + self.ridge * torch.eye(len(tables), dtype=torch.float64)
        self._weights = torch.linalg.solve(gram, (scores[:, 0] - self._mean) / self._spread)
        # torch's default driver, gelsy, reads memory that nobody wrote (pytorch#187411): one fit in ten differs in its last bits
        line = torch.linalg.lstsq(self._macs(tables), scores[:, 1:], driver="gelsd")
        self._price: Tensor = line.solution

    def predict(self, tables: Tensor) -> Tensor:
        """Foretold scores, float64 [n, 2]."""
        features = (self._features(tables) - self._centre) / self._width
        loss = self._mean + self._spread * (_kernel(features, self._known) @ self._weights)
        return torch.cat([loss.unsqueeze(1), self._macs(tables) @ self._price], 1)

    def _features(self, tables: Tensor) -> Tensor:
        stale, computed = staleness(tables, self.drifts), tables.double()
        held = torch.cat([stale.sum((1, 2)).unsqueeze(1), stale.sum(1), stale.sum(2)], 1)
        return torch.cat([torch.log(held + _LEAST), computed.mean(1), computed.mean(2)], 1)

    def _macs(self, tables: Tensor) -> Tensor:
        """Share of the full run's MACs and a constant, [n, 2]."""
        share = tables.double().mean(1) @ self.prices
        return torch.stack([share, torch.ones_like(share)], 1)


def _kernel(a: Tensor, b: Tensor) -> Tensor:
    near = torch.exp(-torch.cdist(a, b).square() / (2 * a.shape[1]))
    return a @ b.T / a.shape[1] + near
