"""Cutting a batch into lanes: one for all of it, or one for each sample."""

from torch import Tensor, nn

ROW_COUNTING = "PAG"
"""In the names of Diffusers' attention processors for perturbed-attention guidance, which cut the batch into passes."""


def counts_rows(denoiser: nn.Module) -> bool:
    """Whether its attention tells guidance passes apart by their rows: some without the others come out wrong."""
    processors = getattr(denoiser, "attn_processors", {}).values()
    return any(ROW_COUNTING in type(processor).__name__ for processor in processors)


def lane_of(tensors: dict[str, Tensor], lane: int, lanes: int) -> dict[str, Tensor]:
    """A call's tensors for one of so many lanes; those that have no batch dimension serve them all."""
    if lanes == 1:
        return tensors
    return {path: t[lane : lane + 1] if t.ndim and t.shape[0] == lanes else t for path, t in tensors.items()}


def outputs_of(outputs: list[Tensor], lane: int, lanes: int) -> list[Tensor]:
    """An output's tensors for one of so many lanes."""
    return outputs if lanes == 1 else [tensor[lane : lane + 1] for tensor in outputs]
