"""The rows of a batch: which belong to which sample, and whether they hold both guidance passes.

A lane is what is decided together: the whole batch, or with `per_sample` one sample in all of its guidance passes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from diffcache.host.call import Call
from diffcache.host.conventions import ROW_COUNTING


def counts_rows(denoiser: nn.Module) -> bool:
    """Whether its attention tells guidance passes apart by their rows, so that no row can be computed alone."""
    processors = getattr(denoiser, "attn_processors", {}).values()
    return any(ROW_COUNTING in type(processor).__name__ for processor in processors)


class Halves:
    """Finds out whether a denoiser's calls hold both guidance passes as one batch.

    Args:
        separable: rows of a batch can be computed alone.
    """

    def __init__(self, *, separable: bool) -> None:
        self.separable = separable
        self._alike: dict[int, bool] = {}

    def of(self, call: Call, tick: int, context: str | None) -> bool:
        """Whether a call holds two equal halves of latents at the run's first two ticks.

        Two guidance passes do. Two images of one seed begin alike too, but differ from the second tick on. Reads the
        device at these two ticks only.
        """
        if context not in (None, "cond_uncond") or not self.separable:
            return False
        if len(self._alike) < 2 and tick not in self._alike and all(self._alike.values()):
            even = call.batched and call.divisible() and call.batch % 2 == 0
            self._alike[tick] = even and torch.equal(*call.latents[0].chunk(2))
        return all(self._alike.values())


def lane_of(tensors: dict[str, Tensor], lane: int, lanes: int, batch: int) -> dict[str, Tensor]:
    """One lane's part of a call's tensors; tensors without a batch dimension serve all lanes.

    A batch of several guidance passes holds one row of each lane for each pass, pass after pass.
    """
    if lanes == 1:
        return tensors
    return {path: t[lane::lanes] if t.ndim and t.shape[0] == batch else t for path, t in tensors.items()}


def outputs_of(outputs: list[Tensor], lane: int, lanes: int) -> list[Tensor]:
    """One lane's part of an output's tensors."""
    return outputs if lanes == 1 else [tensor[lane::lanes] for tensor in outputs]


def rows_of(some: Sequence[int], lanes: int, batch: int) -> list[int]:
    """The rows of some of the lanes, pass after pass."""
    return [first + lane for first in range(0, batch, lanes) for lane in some]


def joined(parts: Sequence[list[Tensor]]) -> list[Tensor]:
    """An output's tensors from those of all lanes."""
    if len(parts) == 1:
        return parts[0]
    return [torch.stack(tensors, dim=1).flatten(0, 1) for tensors in zip(*parts, strict=True)]
