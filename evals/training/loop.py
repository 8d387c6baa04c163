"""The training loop that all testbeds share: a time budget, averaged weights, checkpoints that resume."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from diffcache.evals.training.optim import Average, Optimiser


@dataclass(frozen=True)
class Budget:
    """How long and how fast to train. Seconds are CPU seconds of this process, so a busy machine costs nothing."""

    seconds: float
    lr: float = 2e-3
    warmup: float = 0.02
    decay_from: float = 0.4
    checkpoint_every: float = 300.0

    def rate(self, progress: float) -> float:
        """Learning rate at `progress` in [0, 1]: up, flat, down in a straight line to zero."""
        if progress < self.warmup:
            return self.lr * progress / self.warmup
        return self.lr * min(1.0, max(0.0, 1 - progress) / (1 - self.decay_from))


@dataclass
class Progress:
    """What a training has used so far."""

    iterations: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        recent = self.losses[-200:]
        mean = sum(recent) / max(1, len(recent))
        return f"{self.iterations} iterations, {self.seconds:.0f} CPU seconds, last loss {mean:.4f}"


def clock(device: torch.device) -> float:
    """CPU seconds of this process, or wall seconds where the work is done by an accelerator."""
    return time.process_time() if device.type == "cpu" else time.perf_counter()


def generator_for(seed: int, iteration: int, device: torch.device) -> torch.Generator:
    """Randomness of one iteration, the same whether or not the training was interrupted before it."""
    return torch.Generator(device).manual_seed(seed * 1_000_003 + iteration)


def fit(
    model: nn.Module,
    loss: Callable[[torch.Generator], Tensor],
    optimiser: Optimiser,
    budget: Budget,
    folder: Path,
    *,
    seed: int = 0,
    resume: bool = False,
    preview: Callable[[Path], None] | None = None,
) -> Progress:
    """Train until the budget is spent and leave the averaged weights in `model`.

    `loss(generator)` draws a batch and returns a scalar. At each checkpoint `folder` gets `state.pt`
    (live and averaged weights, optimiser) and `preview(path)` is called with the average in place.
    """
    folder.mkdir(parents=True, exist_ok=True)
    device = next(model.parameters()).device
    average, progress = Average(model), Progress()
    if resume and (folder / "state.pt").exists():
        progress = _load(folder / "state.pt", model, optimiser, average)
    started = saved = clock(device) - progress.seconds
    saved += progress.seconds
    with tqdm(total=round(budget.seconds), unit="s", desc=folder.name, mininterval=10) as bar:
        while progress.seconds < budget.seconds:
            value = loss(generator_for(seed, progress.iterations, device))
            value.backward()  # type: ignore[no-untyped-call]
            optimiser.step(budget.rate(progress.seconds / budget.seconds))
            average.update(model)
            progress.iterations += 1
            progress.losses.append(float(value.detach()))
            progress.seconds = clock(device) - started
            bar.update(round(progress.seconds) - bar.n)
            if clock(device) - saved > budget.checkpoint_every:
                saved = clock(device)
                _save(folder / "state.pt", model, optimiser, average, progress)
                _preview(model, average, folder / f"{progress.iterations:06d}.png", preview)
                bar.set_postfix_str(str(progress))
    average.swap(model)
    return progress


def _preview(model: nn.Module, average: Average, path: Path, preview: Callable[[Path], None] | None) -> None:
    if preview is None:
        return
    average.swap(model)
    with torch.no_grad():
        preview(path)
    average.swap(model)


def _save(path: Path, model: nn.Module, optimiser: Optimiser, average: Average, progress: Progress) -> None:
    state = {
        "model": model.state_dict(),
        "optimiser": optimiser.state_dict(),
        "average": average.values,
        "count": average.count,
        "progress": vars(progress),
    }
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.replace(path)


def _load(path: Path, model: nn.Module, optimiser: Optimiser, average: Average) -> Progress:
    state = torch.load(path, weights_only=True, map_location=next(model.parameters()).device)
    model.load_state_dict(state["model"])
    optimiser.load_state_dict(state["optimiser"])
    average.values, average.count = state["average"], state["count"]
    return Progress(**state["progress"])
