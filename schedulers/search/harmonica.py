"""HarmoniCa (arXiv 2410.01723): a router is trained with the cache in the loop, tick after tick, on no images."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.router import Gates, Router

_TINY = 1e-12


class Denoiser(Protocol):
    """What the training needs of a frozen denoiser and its noise scheduler."""

    def begin(self, draw: int) -> Tensor:
        """The latents that run number `draw` begins with, and all that its conditioning needs."""

    def teacher(self, latents: Tensor, tick: int) -> Tensor:
        """The denoiser's output, all sites computed."""

    def student(self, latents: Tensor, tick: int, gates: Gates) -> Tensor:
        """The same, where each site's output goes through `gates(site, output)`."""

    def step(self, latents: Tensor, output: Tensor, tick: int) -> Tensor:
        """The noise scheduler's step."""


@dataclass(frozen=True)
class Training:
    """How a router is trained.

    The loss at tick t is lambda_t * |teacher - student|^2 / |teacher|^2 (mean over samples) + beta * (compute share of the
    scores at t), with the student on the trajectory that it made itself. lambda_t, the image error proxy, is how far the final latents
    move when tick t is computed in full, in units of its mean. Published beta is a constant per model and run length
    (7e-8 for DiT-XL/2 at 10 ticks), which says little about the compute that comes out: here beta follows a target.

    Attributes:
        target: compute share that the table shall have, of the full run.
        runs: denoising runs; published: 2000 of 10 ticks.
        lr: of AdamW at the start, falling to zero in a straight line; published: 0.01 throughout.
        proxy_every: runs between two measurements of lambda, each T + 1 student runs; published: 50.
        beta: where beta begins.
        pull: how fast log(beta) follows the difference of compute and target, for each run.

    Raises:
        ConfigError: a value out of range.
    """

    target: float
    runs: int = 2000
    lr: float = 0.01
    proxy_every: int = 50
    beta: float = 0.3
    pull: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.target <= 1:
            raise ConfigError(f"target: {self.target} is not a share of the full run, above 0 and at most 1.")


@dataclass(frozen=True)
class Progress:
    """Where a training stands after a run: mean distillation loss, compute share of the table, beta."""

    run: int
    loss: float
    share: float
    beta: float


def train(
    router: Router,
    denoiser: Denoiser,
    prices: Sequence[int],
    training: Training,
    average: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> Iterator[Progress]:
    """Trains a router in place, and says after each run where it stands.

    The router is updated once after each run.

    Args:
        router: where it begins; a table of dynamic programming shortens the way (`Router.of_table`).
        denoiser: see there. Its own parameters are not touched.
        prices: cost of computing each site once.
        training: see there.
        average: mean over the processes that train together, each on its own part of a draw's batch.
    """
    optimiser = torch.optim.AdamW(router.parameters(), lr=training.lr, weight_decay=0)
    weights = torch.tensor(prices, dtype=torch.float32) / sum(prices)
    beta = training.beta
    for run in range(training.runs):
        if run % training.proxy_every == 0:
            proxy = image_error_proxy(router, denoiser, run, average)
        loss = _run(router, denoiser, run, proxy, beta * weights)
        assert router.logits.grad is not None
        router.logits.grad.copy_(average(router.logits.grad))
        optimiser.param_groups[0]["lr"] = training.lr * (1 - run / training.runs)
        optimiser.step()
        optimiser.zero_grad()
        router.clamp_()
        share = float((router.table().float() @ weights).mean())
        yield Progress(run, loss, share, beta)
        beta *= float(torch.tensor(training.pull * (share - training.target)).exp())


@torch.no_grad()
def image_error_proxy(
    router: Router, denoiser: Denoiser, draw: int, average: Callable[[Tensor], Tensor]
) -> Tensor:
    """lambda, [T]: squared change of the final latents when one tick more is computed in full, over its mean.

    As the paper defines it; its code measures how they change when ticks join the router one after the other.
    """
    plain = _final(router, denoiser, draw, None)
    ticks = range(1, len(router.logits))
    moved = [_final(router, denoiser, draw, t).sub(plain).square().mean() for t in ticks]
    proxy = average(torch.stack([torch.zeros_like(moved[0]), *moved]).float())
    return proxy / proxy[1:].mean().clamp_min(_TINY)


def _final(router: Router, denoiser: Denoiser, draw: int, forced: int | None) -> Tensor:
    gates = Gates(router.scores(), router.threshold, forced)
    latents = denoiser.begin(draw)
    for tick in range(len(router.logits)):
        gates.tick = tick
        latents = denoiser.step(latents, denoiser.student(latents, tick, gates), tick)
    return latents


def _run(router: Router, denoiser: Denoiser, draw: int, proxy: Tensor, prices: Tensor) -> float:
    """One student run; leaves the gradient of all its ticks in the logits, and returns the mean distillation loss."""
    latents, total = denoiser.begin(draw), 0.0
    scores = router.scores()
    leaf = scores.detach().requires_grad_()
    gates = Gates(leaf, router.threshold)
    for tick in range(len(leaf)):
        gates.tick = tick
        output = denoiser.student(latents, tick, gates)
        if tick:
            with torch.no_grad():
                wanted = denoiser.teacher(latents, tick).flatten(1)
                size = wanted.square().sum(1) + _TINY
            distilled = ((wanted - output.flatten(1)).square().sum(1) / size).mean()
            loss = proxy[tick] * distilled + (leaf[tick] * prices).sum()
            loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]  # what is held leads back to the scores
            total += float(distilled.detach()) / (len(leaf) - 1)
        latents = denoiser.step(latents, output, tick).detach()
    scores.backward(leaf.grad)  # type: ignore[no-untyped-call]
    return total
