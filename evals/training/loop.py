"""The training loop that all testbeds share: so much time, averaged weights, and checkpoints to resume from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from diffcache.evals.training.optim import Average, Optimiser
from diffcache.schedulers.whole_files import written_whole


@dataclass(frozen=True)
class Training:
    """A training of one part of a testbed, as the command line asks for it.

    Attributes:
        name: of the part.
        work: folder of all trainings; one part's training reads what another's has left here.
        out: folder of the finished testbed.
        minutes: of CPU time of this process, so that a busy machine costs nothing; of wall time on an accelerator.
        device: where it runs.
        seed: of the weights and the data.
        resume: go on from the last checkpoint, if there is one.
    """

    name: str
    work: Path
    out: Path
    minutes: float
    device: torch.device
    seed: int = 0
    resume: bool = False

    @property
    def folder(self) -> Path:
        """For checkpoints and previews."""
        return self.work / self.name


WARMUP, DECAY_FROM = 0.02, 0.4
"""Shares of the time: the learning rate rises until the first, and falls from the second on."""


@dataclass(frozen=True)
class Pace:
    """The learning rate over the time of a training, and how often it is saved.

    Attributes:
        lr: the highest learning rate.
        checkpoint_every: seconds.
    """

    lr: float
    checkpoint_every: float = 300.0

    def rate(self, progress: float) -> float:
        """The learning rate at `progress` in 0..1: it rises, stays, and falls in a straight line to zero."""
        if progress < WARMUP:
            return self.lr * progress / WARMUP
        return self.lr * min(1.0, max(0.0, 1 - progress) / (1 - DECAY_FROM))


@dataclass
class Progress:
    """What a training has done so far."""

    iterations: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        recent = self.losses[-200:]
        mean = sum(recent) / max(1, len(recent))
        return f"{self.iterations} iterations, {self.seconds:.0f} CPU seconds, last loss {mean:.4f}"


def clock(device: torch.device) -> float:
    """CPU seconds of this process, or wall seconds if an accelerator does the work."""
    return time.process_time() if device.type == "cpu" else time.perf_counter()


def generator_for(seed: int, iteration: int, device: torch.device) -> torch.Generator:
    """The random generator of one iteration; it does not depend on interruptions of the training."""
    return torch.Generator(device).manual_seed(seed * 1_000_003 + iteration)


def fit(
    model: nn.Module,
    loss: Callable[[torch.Generator], Tensor],
    optimiser: Optimiser,
    pace: Pace,
    training: Training,
    preview: Callable[[Path], None] | None = None,
) -> Progress:
    """Trains until the time is over, and leaves the averaged weights in `model`.

    Args:
        model: what is trained.
        loss: draws a batch with a generator, and returns a scalar.
        optimiser: of the model.
        pace: learning rate and checkpoints.
        training: its folder gets `state.pt` at each checkpoint (live and averaged weights, optimiser).
        preview: draws a picture of the model with averaged weights, at each checkpoint.
    """
    folder, seconds = training.folder, 60 * training.minutes
    folder.mkdir(parents=True, exist_ok=True)
    device = next(model.parameters()).device
    average, progress = Average(model), Progress()
    if training.resume and (folder / "state.pt").exists():
        progress = _load(folder / "state.pt", model, optimiser, average)
    started = saved = clock(device) - progress.seconds
    saved += progress.seconds
    with tqdm(total=round(seconds), unit="s", desc=folder.name, mininterval=10) as bar:
        while progress.seconds < seconds:
            value = loss(generator_for(training.seed, progress.iterations, device))
            value.backward()  # type: ignore[no-untyped-call]
            optimiser.step(pace.rate(progress.seconds / seconds))
            average.update(model)
            progress.iterations += 1
            progress.losses.append(float(value.detach()))
            progress.seconds = clock(device) - started
            bar.update(round(progress.seconds) - bar.n)
            if clock(device) - saved > pace.checkpoint_every:
                saved = clock(device)
                _save(folder / "state.pt", model, optimiser, average, progress)
                if preview is not None:
                    with average.put_into(model), torch.no_grad():
                        preview(folder / f"{progress.iterations:06d}.png")
                bar.set_postfix_str(str(progress))
    average.swap(model)
    return progress


def _save(path: Path, model: nn.Module, optimiser: Optimiser, average: Average, progress: Progress) -> None:
    state = {
        "model": model.state_dict(),
        "optimiser": optimiser.state_dict(),
        "average": average.values,
        "count": average.count,
        "progress": vars(progress),
    }
    with written_whole(path) as part:
        torch.save(state, part)


def _load(path: Path, model: nn.Module, optimiser: Optimiser, average: Average) -> Progress:
    state = torch.load(path, weights_only=True, map_location=next(model.parameters()).device)
    model.load_state_dict(state["model"])
    optimiser.load_state_dict(state["optimiser"])
    average.values, average.count = state["average"], state["count"]
    return Progress(**state["progress"])
