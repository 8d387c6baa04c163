"""Weights that are stored in half the bytes: float16 in the file, float32 in the network."""

from pathlib import Path
from typing import TypeVar

from safetensors.torch import load_file, save_file
from torch import nn

Net = TypeVar("Net", bound=nn.Module)


def save_weights(net: nn.Module, file: Path) -> None:
    """Writes a network's weights in float16, and the folders above the file where they are missing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.half().contiguous() for name, value in net.state_dict().items()}, file)


def with_weights(net: Net, file: Path) -> Net:
    """A network with the weights of a file, in float32 evaluation mode."""
    net.load_state_dict({name: value.float() for name, value in load_file(file).items()})
    return net.eval().requires_grad_(False)
