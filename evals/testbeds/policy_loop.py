"""The policy testbed as recordings and searches call it: its loop, and calls that plan from what the expert met."""

import torch
from torch import Tensor, nn

from diffcache.evals.testbeds.diffusion_policy import plan
from diffcache.evals.testbeds.reaching import demonstrations
from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.loops import Loop


def policy_loop(net: nn.Module) -> Loop:
    """A policy with its loop; its actions [n, 8, 2] count as a picture in 0..1."""

    def planned(net: nn.Module, observations: Tensor, steps: int, generator: torch.Generator) -> Tensor:
        return plan(net, observations, steps, generator) / 2 + 0.5

    return Loop(net, planned)


def planning_calls(seed: int, samples: int, steps: int) -> list[Call]:
    """One call: observations from demonstrations of this seed, and noise of this seed to plan from."""
    generator = torch.Generator().manual_seed(seed)
    observations, _ = demonstrations(samples, generator)
    drawn = torch.randperm(len(observations), generator=generator)[:samples]
    noise = torch.Generator().manual_seed(seed)
    return [{"observations": observations[drawn], "steps": steps, "generator": noise}]
