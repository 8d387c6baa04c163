"""Cutting a batch into lanes: one for all of it, or one for each sample, in all of its guidance passes."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

ROW_COUNTING = "PAG"
"""In the names of Diffusers' attention processors for perturbed-attention guidance, which cut the batch into passes."""


def counts_rows(denoiser: nn.Module) -> bool:
    """Whether its attention tells guidance passes apart by their rows: some without the others come out wrong."""
    processors = getattr(denoiser, "attn_processors", {}).values()
    return any(ROW_COUNTING in type(processor).__name__ for processor in processors)


def lane_of(tensors: dict[str, Tensor], lane: int, lanes: int, batch: int) -> dict[str, Tensor]:
    """A call's tensors for one of so many lanes; those that have no batch dimension serve them all.

    A batch of several guidance passes holds one row of each lane for each pass, pass after pass.
    """
    if lanes == 1:
        return tensors
    return {path: t[lane::lanes] if t.ndim and t.shape[0] == batch else t for path, t in tensors.items()}


def outputs_of(outputs: list[Tensor], lane: int, lanes: int) -> list[Tensor]:
    """An output's tensors for one of so many lanes."""
    return outputs if lanes == 1 else [tensor[lane::lanes] for tensor in outputs]


def rows_of(some: Sequence[int], lanes: int, batch: int) -> list[int]:
    """The rows of some of the lanes, pass after pass."""
    return [first + lane for first in range(0, batch, lanes) for lane in some]


def joined(parts: Sequence[list[Tensor]]) -> list[Tensor]:
    """An output's tensors from those of all lanes."""
    if len(parts) == 1:
        return parts[0]
    return [torch.stack(tensors, dim=1).flatten(0, 1) for tensors in zip(*parts, strict=True)]
