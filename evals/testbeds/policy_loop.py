"""The policy testbed for recordings and searches: its loop, and calls with observations of the expert."""

import torch
from torch import Tensor, nn

from diffcache.evals.testbeds.diffusion_policy import sample_actions
from diffcache.evals.testbeds.reaching_task import demonstrations
from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.loops import Loop


def policy_loop(net: nn.Module) -> Loop:
    """A policy with its loop; its actions [n, 8, 2] are returned as a picture in 0..1."""

    def run(net: nn.Module, observations: Tensor, steps: int, generator: torch.Generator) -> Tensor:
        return sample_actions(net, observations, steps, generator) / 2 + 0.5

    return Loop(net, run)


def policy_calls(seed: int, samples: int, steps: int) -> list[Call]:
    """One call: observations from demonstrations, and first noise, both of this seed."""
    generator = torch.Generator().manual_seed(seed)
    observations, _ = demonstrations(samples, generator)
    drawn = torch.randperm(len(observations), generator=generator)[:samples]
    noise = torch.Generator().manual_seed(seed)
    return [{"observations": observations[drawn], "steps": steps, "generator": noise}]
