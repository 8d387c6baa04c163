"""Cutting a batch into lanes: one for all of it, or one for each sample."""

from torch import Tensor


def lane_of(tensors: dict[str, Tensor], lane: int, lanes: int) -> dict[str, Tensor]:
    """A call's tensors for one of so many lanes; those that have no batch dimension serve them all."""
    if lanes == 1:
        return tensors
    return {path: t[lane : lane + 1] if t.ndim and t.shape[0] == lanes else t for path, t in tensors.items()}


def outputs_of(outputs: list[Tensor], lane: int, lanes: int) -> list[Tensor]:
    """An output's tensors for one of so many lanes."""
    return outputs if lanes == 1 else [tensor[lane : lane + 1] for tensor in outputs]
