"""Training of the policy testbed: behaviour cloning of the expert in `evals/testbeds/reaching_task.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers
import torch
from torch import Tensor
from torch.nn import functional

from diffcache.evals.testbeds.diffusion_policy import PolicyTransformer, ddpm
from diffcache.evals.testbeds.reaching_task import demonstrations, success_rate
from diffcache.evals.training.accept import write_hashes
from diffcache.evals.training.common import is_block_matrix
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser

_BATCH = 256
_EPISODES = 4000
_STEPS = (100, 20)
_TRIED = 256


def train(training: Training) -> Progress:
    """Trains the network to predict the noise in the expert's actions, and saves it to `training.out`."""
    torch.manual_seed(training.seed)
    device = training.device
    net = PolicyTransformer().to(device)
    observed, acted = demonstrations(_EPISODES, torch.Generator().manual_seed(training.seed))
    observed, acted = observed.to(device), acted.to(device)
    alphas = ddpm().alphas_cumprod.to(device)

    def loss(generator: torch.Generator) -> Tensor:
        drawn = torch.randint(len(acted), (_BATCH,), generator=generator, device=device)
        t = torch.randint(len(alphas), (_BATCH,), generator=generator, device=device)
        noise = torch.randn(acted[drawn].shape, generator=generator, device=device)
        signal = alphas[t].sqrt().view(-1, 1, 1)
        noisy = signal * acted[drawn] + (1 - signal**2).sqrt() * noise
        return functional.mse_loss(net(noisy, t, observed[drawn]), noise)

    optimiser = Optimiser(net, is_block_matrix)
    progress = fit(net, loss, optimiser, Pace(lr=2e-3), training)
    net.cpu().save(training.out)
    return progress


def accept_policy(folder: Path, facts: dict[str, Any]) -> None:
    """Writes the fact sheet of the trained policy, and updates the table of hashes."""
    net = PolicyTransformer.load(folder)
    rates = {steps: success_rate(net, _TRIED, steps, seed=1) for steps in _STEPS}
    read = ", ".join(f"{rate:.3f} with {steps} steps" for steps, rate in rates.items())
    commands = " ; ".join(f"`{command}`" for command in facts["commands"])
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 1e6
    lines = [
        "# Testbed policy",
        "",
        "A diffusion policy: a transformer decoder that samples actions, trained from nothing to imitate the expert of",
        "`evals/testbeds/reaching_task.py`. Its weights are in float16; load it with `diffcache.evals.testbeds.diffusion_policy.PolicyTransformer.load`.",
        "",
        "| fact | value |",
        "|---|---|",
        f"| parameters | {sum(p.numel() for p in net.parameters()):,} |",
        f"| weight file | {size:.1f} MB |",
        "| noise scheduler | DDPMScheduler, 100 steps |",
        f"| trained | {facts['iterations']} iterations, {facts['seconds']} CPU seconds |",
        f"| seed | {facts['seed']} |",
        f"| commands | {commands} |",
        f"| versions | torch {torch.__version__}, diffusers {diffusers.__version__} |",
        f"| success in {_TRIED} new episodes | {read} |",
        "",
    ]
    (folder / "README.md").write_text("\n".join(lines))
    write_hashes(folder.parent)
    print("policy", rates)
