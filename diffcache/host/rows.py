"""The rows of a batch: whether they hold both guidance passes, and which belong to which lane.

A lane is what is decided together: the whole batch, or with `per_sample` one sample in all of its guidance passes. A batch
of several guidance passes holds the rows of the first pass, one for each lane, then those of the second, and so on.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from diffcache.hooks.class_swap import base_class
from diffcache.host.call import Call
from diffcache.host.conventions import CONDITIONAL_FIRST, ROW_COUNTING
from diffcache.host.structure import modules_inside


def counts_rows(denoiser: nn.Module) -> bool:
    """Whether its attention finds the guidance passes by counting rows, so that no row can be computed alone."""
    insides = (vars(module) for module in modules_inside(denoiser))
    processors = (inside.get("processor") or inside["_modules"].get("processor") for inside in insides)
    return any(ROW_COUNTING in type(processor).__name__ for processor in processors)


class BatchedGuidance:
    """Finds out whether a denoiser's calls hold both guidance passes in one batch.

    The two passes have equal latents. So the batch's halves are compared at the run's first two ticks, which reads the
    device twice. The second tick tells guidance from two pictures of one seed, whose latents are equal at the first only.
    They are compared anew where the batch has another size: a callback may end guidance during a run.
    """

    def __init__(self) -> None:
        self._is_separable: bool | None = None
        self._batch: int | None = None
        self._halves_are_equal: dict[int, bool] = {}

    def is_separable(self, denoiser: nn.Module) -> bool:
        """Whether rows of a batch can be computed alone. It looks through the denoiser's modules at the first question."""
        if self._is_separable is None:
            self._is_separable = not counts_rows(denoiser)
        return self._is_separable

    def found_in(self, denoiser: nn.Module, call: Call, tick: int, context: str | None) -> bool:
        """Whether a call holds both passes.

        Args:
            denoiser: what is called.
            call: its arguments.
            tick: its tick.
            context: the name that the pipeline gives the pass (`cache_context`), if any.
        """
        if context not in (None, "cond_uncond") or not self.is_separable(denoiser):
            return False
        if call.batch != self._batch:
            self._batch, self._halves_are_equal = call.batch, {}
        known = self._halves_are_equal
        if len(known) < 2 and tick not in known and all(known.values()):
            is_even = call.batched and call.divisible() and call.batch % 2 == 0
            # A dry run's latents have no values.
            known[tick] = is_even and (call.latents[0].is_meta or is_doubled(call.latents[0]))
        return all(known.values())


def is_doubled(batch: Tensor) -> bool:
    """Whether a batch holds the same samples twice: once for each guidance pass. Reads the device."""
    return len(batch) % 2 == 0 and torch.equal(*batch.chunk(2))


def conditional_first(module: nn.Module) -> bool:
    """Whether a denoiser's pipelines put the conditional half of a batch first."""
    return base_class(type(module)).__name__ in CONDITIONAL_FIRST


def lane_of(tensors: dict[str, Tensor], lane: int, lanes: int, batch: int) -> dict[str, Tensor]:
    """One lane's rows of a call's tensors. A tensor without a batch dimension is the same for all lanes."""
    if lanes == 1:
        return tensors
    return {path: t[lane::lanes] if t.ndim and t.shape[0] == batch else t for path, t in tensors.items()}


def outputs_of(outputs: list[Tensor], lane: int, lanes: int) -> list[Tensor]:
    """One lane's rows of an output's tensors."""
    return outputs if lanes == 1 else [tensor[lane::lanes] for tensor in outputs]


def rows_of(some: Sequence[int], lanes: int, batch: int) -> list[int]:
    """The indices of the rows that belong to some of the lanes, pass after pass."""
    return [first + lane for first in range(0, batch, lanes) for lane in some]


def joined(parts: Sequence[list[Tensor]]) -> list[Tensor]:
    """An output's tensors, from one list of tensors for each lane."""
    if len(parts) == 1:
        return parts[0]
    return [torch.stack(tensors, dim=1).flatten(0, 1) for tensors in zip(*parts, strict=True)]
