"""Tiny pipelines with random weights, saved in bfloat16 as users save theirs: with tokenizers and text encoders."""

from pathlib import Path

import torch

from diffcache.evals.testbeds import zoo

OPTIONS = {
    "flux": ["--size", "64", "--call", "max_sequence_length=20"],
    "wan": ["--size", "32", "--frames", "9", "--call", "max_sequence_length=20"],
    "sd": ["--size", "64"],
}
"""What the command needs besides the folder: these models are made for small pictures."""


def save_random(testbed: str, folder: Path) -> Path:
    """A pipeline with a testbed's architecture and tokenizers, random weights, in bfloat16."""
    pipe = zoo.load(testbed)
    noise = torch.Generator().manual_seed(0)
    for component in pipe.components.values():
        if isinstance(component, torch.nn.Module):
            with torch.no_grad():
                for parameter in component.parameters():
                    size = 1.0 / max(parameter.shape[-1], 1) ** 0.5
                    parameter.copy_(size * torch.randn(parameter.shape, generator=noise))
    pipe.to(torch.bfloat16).save_pretrained(folder)
    return folder
