"""HarmoniCa (arXiv 2410.01723): training of a router with the cache in the denoising loop, without any images."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from diffcache.schedulers.errors import ConfigError, ScheduleError
from diffcache.schedulers.search.checkpoint import load_checkpoint, save_checkpoint
from diffcache.schedulers.search.router import Gates, Router

Note = Callable[[str, Callable[[], Tensor]], Tensor]
"""From the name of a render and a function that makes it to what it made, now or earlier."""

_TINY = 1e-12
"""Added to divisors."""

KIND = "router"
"""The kind of its checkpoints."""

Learn = Callable[[int, Tensor, Tensor], None]
"""Called with a tick, the teacher's output, and the student's output with its gradient, each [batch, ...]."""


class Denoiser(Protocol):
    """A frozen denoiser in its loop, as the training needs it: a batch of calls, with new random numbers in each run."""

    def run(self, draw: int, gates: Gates, learn: Learn | None) -> Tensor:
        """A run of the student along its own trajectory; returns its final latents or pictures.

        It sets `gates.tick` and passes the output of each site through `gates(site, output, key)`.

        Args:
            draw: number of the run, from which the random numbers follow.
            gates: the student's cache.
            learn: called at each denoiser call after the first tick; None: no gradient is needed.
        """


@dataclass(frozen=True)
class Training:
    """How a router is trained.

    The loss at tick t is lambda_t * |teacher - student|^2 / |teacher|^2 (mean over samples) + beta * (compute share of the
    scores at t). The student runs along its own trajectory. lambda_t, the image error proxy, is how far the final latents move
    when tick t is computed in full, over its mean. The published beta is a constant for each model and run length (7e-8 for
    DiT-XL/2 at 10 ticks), from which the resulting compute cannot be known. Here beta follows a target.

    Attributes:
        target: share of the cost of all sites that the table shall compute.
        runs: denoising runs. Published: 2000 of 10 ticks.
        lr: AdamW's learning rate at the start; it falls linearly to zero. Published: 0.01 throughout.
        proxy_every: runs between two measurements of lambda, each of which takes T + 1 student runs. Published: 50.
        beta: beta at the start, in units of the mean distillation gradient of the first run over the mean weight of the sites.
        pull: how much log(beta) changes in a run, for each unit by which the compute exceeds the target.
        seed: of the scores that a router starts with where no table is given.

    Raises:
        ConfigError: a value is out of range.
    """

    target: float
    runs: int = 2000
    lr: float = 0.01
    proxy_every: int = 50
    beta: float = 0.1
    pull: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.target <= 1:
            raise ConfigError(f"target: {self.target} is not a share of the full run, above 0 and at most 1.")


@dataclass(frozen=True)
class Progress:
    """State of a training after a run: mean distillation loss, compute share of the table, and beta."""

    run: int
    loss: float
    share: float
    beta: float


class Trainer:
    """A training that updates the router once after each run. It can be saved and resumed, and then ends the same to the bit.

    Args:
        router: trained in place. One that starts at a table of dynamic programming (`Router.of_table`) needs fewer runs.
        prices: cost of computing each site once.
        training: settings.

    Attributes:
        run: how many runs are done.
        beta: weight of the compute share in the next run.
    """

    def __init__(self, router: Router, prices: Sequence[int], training: Training) -> None:
        self.router = router
        self.training = training
        self.run = 0
        self.beta = training.beta
        self._weights = torch.tensor(prices, dtype=torch.float32) / sum(prices)
        self._optimiser = torch.optim.AdamW(router.parameters(), lr=training.lr, weight_decay=0)
        self._proxy = torch.zeros(len(router.logits))

    def train(
        self,
        denoisers: Sequence[Denoiser],
        average: Callable[[Tensor], Tensor] = lambda tensor: tensor,
        note: Note = lambda name, make: make(),
    ) -> Iterator[Progress]:
        """Trains to the end, and yields the progress after each run: to log it, `save`, or stop.

        Args:
            denoisers: the batches of each run. Their own parameters do not change.
            average: mean over the processes that train together, each with as many denoisers.
            note: is given the name of every render and a function that makes it; it may know the result already.
        """
        while self.run < self.training.runs:
            yield self._train_once(denoisers, average, note)

    def save(self, path: Path) -> None:
        """Writes everything that the training needs to continue. If this is interrupted, the old file stays."""
        settings = {"run": self.run, "beta": self.beta}
        state = self._optimiser.state_dict()["state"].get(0, {})
        tensors = {"logits": self.router.logits.detach(), "proxy": self._proxy, **state}
        save_checkpoint(path, KIND, tensors, settings)

    def load(self, path: Path) -> None:
        """Continues a saved training of the same router and settings.

        Raises:
            ScheduleError: the file is damaged, or not a checkpoint of a router of this shape.
        """
        tensors, settings = load_checkpoint(path, KIND)
        logits, proxy = tensors.pop("logits"), tensors.pop("proxy")
        if logits.shape != self.router.logits.shape:
            raise ScheduleError(f"{path}: not a checkpoint of this router; begin a new training.")
        self.run, self.beta, self._proxy = settings["run"], settings["beta"], proxy
        self.router.logits.data.copy_(logits)
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": {0: tensors} if tensors else {}, "param_groups": groups})

    def _train_once(
        self, denoisers: Sequence[Denoiser], average: Callable[[Tensor], Tensor], note: Note
    ) -> Progress:
        router, training = self.router, self.training
        if self.run % training.proxy_every == 0:
            self._proxy = image_error_proxy(router, denoisers, self.run, average, note)
        scores = router.scores()
        found = [
            _learned(note(f"run {self.run}, {i}", partial(self._run, denoiser, scores)), scores)
            for i, denoiser in enumerate(denoisers)
        ]
        gradient = average(torch.stack([gradient for gradient, _ in found]).mean(0))
        if not self.run:
            self.beta *= float(gradient[1:].abs().mean() / self._weights.mean())
        scores.backward(gradient + self.beta * self._weights)  # type: ignore[no-untyped-call]
        self._optimiser.param_groups[0]["lr"] = training.lr * (1 - self.run / training.runs)
        self._optimiser.step()
        self._optimiser.zero_grad()
        router.clamp_()
        share = float((router.table().float() @ self._weights).mean())
        loss = sum(loss for _, loss in found) / len(found)
        progress = Progress(self.run, loss, share, self.beta)
        self.beta *= exp(training.pull * (share - training.target))
        self.run += 1
        return progress

    def _run(self, denoiser: Denoiser, scores: Tensor) -> Tensor:
        return _run(scores, denoiser, self.run, self._proxy)


@torch.no_grad()
def image_error_proxy(
    router: Router,
    denoisers: Sequence[Denoiser],
    draw: int,
    average: Callable[[Tensor], Tensor],
    note: Note = lambda name, make: make(),
) -> Tensor:
    """lambda, [T]: how far a run's end moves when one more tick is computed in full: the squared change over its mean.

    This is the paper's definition. The published code measures the change when ticks join the router one after the other.
    """
    scores = router.scores()

    def moved(i: int) -> Tensor:
        def end(tick: int | None = None) -> Tensor:
            gates = Gates(scores, tick)
            return note(f"end {draw}, {i}, {tick}", lambda: denoisers[i].run(draw, gates, None).cpu())

        plain, ends = end(), [end(tick) for tick in range(1, len(scores))]
        return torch.stack([torch.zeros(()), *((last - plain).square().mean().float() for last in ends)])

    proxy = average(torch.stack([moved(i) for i in range(len(denoisers))]).mean(0))
    return proxy / proxy[1:].mean().clamp_min(_TINY)


def _learned(packed: Tensor, scores: Tensor) -> tuple[Tensor, float]:
    """The gradient and the loss of `_run`."""
    return packed[:-1].to(scores.dtype).view_as(scores), float(packed[-1])


def _run(scores: Tensor, denoiser: Denoiser, draw: int, proxy: Tensor) -> Tensor:
    """One student run: the gradient of the distillation loss with respect to the scores, and the mean loss; float64 [T * S + 1]."""
    leaf = scores.detach().requires_grad_()
    losses: list[float] = []

    def learn(tick: int, teacher: Tensor, student: Tensor) -> None:
        wanted = teacher.flatten(1)
        size = wanted.square().sum(1) + _TINY
        distilled = ((wanted - student.flatten(1)).square().sum(1) / size).mean()
        losses.append(float(distilled.detach()))
        if distilled.requires_grad:
            weight = float(proxy[tick])
            (weight * distilled).backward(retain_graph=True)  # type: ignore[no-untyped-call]  # held values share the graph

    denoiser.run(draw, Gates(leaf), learn)
    gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    mean = torch.tensor([sum(losses) / max(len(losses), 1)], dtype=torch.float64)
    return torch.cat([gradient.flatten().double(), mean])
