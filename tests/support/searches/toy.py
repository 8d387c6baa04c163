"""A toy denoiser of residual tanh layers that can be held, each with a rhythm of its own. It runs many tables at once."""

from collections.abc import Callable

import torch
from torch import Tensor

from diffcache.schedulers.search.evolution import Evaluate, Evolution
from diffcache.schedulers.search.harmonica import Learn
from diffcache.schedulers.search.knapsack import allocate
from diffcache.schedulers.search.router import Gates
from diffcache.schedulers.search.seeds import every

FLOOR = 1e-7


def drift_of(features: Tensor) -> Tensor:
    """float64 [T, T]: entry [a, t] is the mean absolute difference of the features [T, ...] of a and t; 0 where t <= a."""
    flat = features.flatten(1).double()
    return (flat.unsqueeze(1) - flat).abs().mean(2).triu()


class Toy:
    """S sites of different prices and rhythms in an Euler loop of T ticks.

    Attributes:
        prices: MACs of each site.
        drifts: [S, T, T] of the full run.
    """

    def __init__(self, ticks: int = 12, sites: int = 6, width: int = 8, seed: int = 0) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.ticks, self.sites = ticks, sites
        self.prices = [100 + 60 * (i % 3) for i in range(sites)]
        self.noise = torch.randn(4, width, generator=rng, dtype=torch.float64)
        self.mixing = torch.randn(sites, width, width, generator=rng, dtype=torch.float64) / width**0.5
        self.phase = torch.rand(sites, width, generator=rng, dtype=torch.float64) * 6
        self.rhythm = 1 + 7 * torch.rand(sites, 1, generator=rng, dtype=torch.float64)
        self.gain = 0.2 + torch.rand(sites, generator=rng, dtype=torch.float64)
        full = torch.ones(1, ticks, sites, dtype=torch.bool)
        self.reference, features = self.run(full)
        self.drifts = torch.stack([self.gain[s] * drift_of(features[0, :, s]) for s in range(sites)])
        self.rendered = 0

    def site(self, index: int, tick: int, hidden: Tensor) -> Tensor:
        bias = torch.sin(self.phase[index] + self.rhythm[index] * tick / self.ticks)
        return self.gain[index] * torch.tanh(hidden @ self.mixing[index] + bias)

    def run(self, tables: Tensor) -> tuple[Tensor, Tensor]:
        """Pictures [n, 4, width] and what the sites returned [n, T, S, 4, width]."""
        x = self.noise.expand(len(tables), -1, -1)
        held = torch.zeros(len(tables), self.sites, *self.noise.shape, dtype=torch.float64)
        features = []
        for tick in range(self.ticks):
            hidden = x
            for s in range(self.sites):
                fresh = tables[:, tick, s, None, None]
                held[:, s] = torch.where(fresh, self.site(s, tick, hidden), held[:, s])
                hidden = hidden + held[:, s]
            x = x + (hidden - 2 * x) / self.ticks
            features.append(held.clone())
        return x, torch.stack(features, 1)

    def evaluate(self, tables: Tensor) -> Tensor:
        """Scores [n, 2]: minus the PSNR to the full run in dB, and MACs."""
        self.rendered += len(tables)
        pictures, _ = self.run(tables)
        error = (pictures - self.reference).square().mean((1, 2))
        macs = (tables.sum(1) * torch.tensor(self.prices)).sum(1)
        return torch.stack([10 * torch.log10(error + FLOOR), macs.double()], 1)

    def uniform(self) -> Tensor:
        return torch.stack([every(self.ticks, self.sites, n) for n in (1, 2, 3, 4, 6)])

    def seeds(self) -> Tensor:
        """Uniform tables, and dynamic programming's for the same budgets."""
        budgets = [int(cost) for cost in self.evaluate(self.uniform())[:, 1]]
        return torch.cat(
            [self.uniform(), torch.stack([allocate(self.drifts, self.prices, b) for b in budgets[1:]])]
        )


class ToyDenoiser:
    """The toy as a router's training sees it: a batch of its own for each draw, or one share of it."""

    def __init__(self, toy: Toy, share: slice = slice(None)) -> None:
        self.toy = toy
        self.share = share

    def run(self, draw: int, gates: Gates, learn: Learn | None) -> Tensor:
        rng = torch.Generator().manual_seed(1000 + draw)
        latents = torch.randn(self.toy.noise.shape, generator=rng, dtype=torch.float64)[self.share]
        for gates.tick in range(self.toy.ticks):
            output = self._output(latents, gates.tick, gates)
            if learn is not None and gates.tick:
                learn(gates.tick, self._output(latents, gates.tick, lambda site, fresh: fresh), output)
            latents = latents + output.detach() / self.toy.ticks
        return latents

    def _output(self, latents: Tensor, tick: int, gates: Callable[[int, Tensor], Tensor]) -> Tensor:
        hidden = latents
        for site in range(self.toy.sites):
            hidden = hidden + gates(site, self.toy.site(site, tick, hidden))
        return hidden - 2 * latents


def evolved(search: Evolution, generations: int, evaluate: Evaluate) -> Evolution:
    """The search after so many generations."""
    for _ in search.generations(evaluate):
        if search.generation >= generations:
            break
    return search
