"""HarmoniCa (arXiv 2410.01723): a router is trained with the cache in the loop, tick after tick, on no images."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from diffcache.schedulers.errors import ConfigError, ScheduleError
from diffcache.schedulers.search.router import Gates, Router

_TINY = 1e-12


Learn = Callable[[int, Tensor, Tensor], None]
"""Told of a tick, the teacher's output, and the student's with its gradient, each [batch, ...]."""


class Denoiser(Protocol):
    """What the training needs of a frozen denoiser in its loop: one batch of calls, drawn anew at each run."""

    def run(self, draw: int, gates: Gates, learn: Learn | None) -> Tensor:
        """Run number `draw` of the student, on the trajectory that it makes itself; returns what it ends with.

        `gates.tick` follows the run, and each site's output goes through `gates(site, output, lane)`. At each denoiser
        call after the first tick `learn` is told; None: no gradient is needed.
        """


@dataclass(frozen=True)
class Training:
    """How a router is trained.

    The loss at tick t is lambda_t * |teacher - student|^2 / |teacher|^2 (mean over samples) + beta * (compute share of the
    scores at t), with the student on the trajectory that it made itself. lambda_t, the image error proxy, is how far the final latents
    move when tick t is computed in full, in units of its mean. Published beta is a constant per model and run length
    (7e-8 for DiT-XL/2 at 10 ticks), which says little about the compute that comes out: here beta follows a target.

    Attributes:
        target: compute share that the table shall have, of what all its places cost.
        runs: denoising runs; published: 2000 of 10 ticks.
        lr: of AdamW at the start, falling to zero in a straight line; published: 0.01 throughout.
        proxy_every: runs between two measurements of lambda, each T + 1 student runs; published: 50.
        beta: where beta begins, in units of the first run's mean distillation gradient (of the scores, times its weight).
        pull: how fast log(beta) follows the difference of compute and target, for each run.

    Raises:
        ConfigError: a value out of range.
    """

    target: float
    runs: int = 2000
    lr: float = 0.01
    proxy_every: int = 50
    beta: float = 0.1
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


class Trainer:
    """A training that can be saved, and goes on to the bit. The router is updated once after each run.

    Args:
        router: where it begins, trained in place; a table of dynamic programming shortens the way (`Router.of_table`).
        prices: cost of computing each site once.
        training: see there.

    Attributes:
        run: how many are done.
        beta: weight of the compute share in the next one.
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
        self, denoisers: Sequence[Denoiser], average: Callable[[Tensor], Tensor] = lambda tensor: tensor
    ) -> Iterator[Progress]:
        """Trains to the end, and says after each run where it stands: log, `save` and stop there.

        Args:
            denoisers: what one draw is made of. Their own parameters are not touched.
            average: mean over the processes that train together, each on as many denoisers of its own.
        """
        while self.run < self.training.runs:
            yield self._train_once(denoisers, average)

    def save(self, path: Path) -> None:
        """Writes everything that the training goes on from, at once: an interrupted write leaves the old file."""
        settings = {"run": self.run, "beta": self.beta, "threshold": self.router.threshold}
        state = self._optimiser.state_dict()["state"].get(0, {})
        tensors = {"logits": self.router.logits.detach(), "proxy": self._proxy, **state}
        part = path.with_suffix(".part")
        save_file(
            {k: t.contiguous().clone() for k, t in tensors.items()}, part, {"router": json.dumps(settings)}
        )
        os.replace(part, path)

    def load(self, path: Path) -> None:
        """Takes over what was saved by a training of the same router and settings.

        Raises:
            ScheduleError: the file is not a whole checkpoint of a router of this shape.
        """
        try:
            with safe_open(path, "pt") as file:
                settings = json.loads((file.metadata() or {})["router"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            logits, self._proxy = tensors.pop("logits"), tensors.pop("proxy")
            if logits.shape != self.router.logits.shape:
                raise KeyError("logits")
        except (SafetensorError, KeyError) as error:
            raise ScheduleError(f"{path}: not a checkpoint of this router; begin a new training.") from error
        self.run, self.beta = settings["run"], settings["beta"]
        self.router.threshold = settings["threshold"]
        self.router.logits.data.copy_(logits)
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": {0: tensors} if tensors else {}, "param_groups": groups})

    def _train_once(self, denoisers: Sequence[Denoiser], average: Callable[[Tensor], Tensor]) -> Progress:
        router, training = self.router, self.training
        if self.run % training.proxy_every == 0:
            self._proxy = image_error_proxy(router, denoisers, self.run, average)
        scores = router.scores()
        found = [_run(scores, router.threshold, denoiser, self.run, self._proxy) for denoiser in denoisers]
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


@torch.no_grad()
def image_error_proxy(
    router: Router, denoisers: Sequence[Denoiser], draw: int, average: Callable[[Tensor], Tensor]
) -> Tensor:
    """lambda, [T]: squared change of what a run ends with when one tick more is computed in full, over its mean.

    As the paper defines it; its code measures how it changes when ticks join the router one after the other.
    """
    scores = router.scores()

    def moved(denoiser: Denoiser) -> Tensor:
        plain = denoiser.run(draw, Gates(scores, router.threshold), None)
        ends = [
            denoiser.run(draw, Gates(scores, router.threshold, tick), None) for tick in range(1, len(scores))
        ]
        return torch.stack([torch.zeros(()), *((end - plain).square().mean().float().cpu() for end in ends)])

    proxy = average(torch.stack([moved(denoiser) for denoiser in denoisers]).mean(0))
    return proxy / proxy[1:].mean().clamp_min(_TINY)


def _run(
    scores: Tensor, threshold: float, denoiser: Denoiser, draw: int, proxy: Tensor
) -> tuple[Tensor, float]:
    """One student run: the distillation's gradient with respect to the scores, and its mean loss."""
    leaf = scores.detach().requires_grad_()
    losses: list[float] = []

    def learn(tick: int, teacher: Tensor, student: Tensor) -> None:
        wanted = teacher.flatten(1)
        size = wanted.square().sum(1) + _TINY
        distilled = ((wanted - student.flatten(1)).square().sum(1) / size).mean()
        losses.append(float(distilled.detach()))
        if distilled.requires_grad:
            weight = float(proxy[tick])
            (weight * distilled).backward(retain_graph=True)  # type: ignore[no-untyped-call]  # held: leads back too

    denoiser.run(draw, Gates(leaf, threshold), learn)
    gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    return gradient, sum(losses) / max(len(losses), 1)
