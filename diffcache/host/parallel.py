"""Agreement: processes that compute one denoiser together decide alike, or they would wait for each other for ever.

It is on where the denoiser's forward itself communicates: under Diffusers' context or tensor parallelism, and where
parameters are sharded DTensors (tensor parallel, FSDP). In plain data parallel each process decides for itself. Where
neither shows, `decide_together` says so.
"""

from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn

from diffcache.host.compiled import uncompiled
from diffcache.schedulers.errors import TargetError
from diffcache.schedulers.steps import Decision

Dimension = tuple[Any, int]
"""A device mesh and one of its dimensions."""

BY_CAUTION = (Decision.PREDICT, Decision.LINE, Decision.HOLD, Decision.COMPUTE)
"""A decision's place is its vote, and the highest wins."""

_declared: "WeakKeyDictionary[nn.Module, Any]" = WeakKeyDictionary()


class Agreement:
    """The processes that call one denoiser together.

    Args:
        dimensions: along these of their device meshes; at least one.
    """

    def __init__(self, dimensions: Sequence[Dimension]) -> None:
        groups = [mesh.get_group(dimension) for mesh, dimension in dimensions]
        self.groups = list({group.group_name: group for group in groups}.values())
        self.device = torch.device(dimensions[0][0].device_type)

    def settle(self, decisions: Sequence[Decision]) -> list[Decision]:
        """The most cautious decision of all processes, for each lane: one small collective for each group.

        Every process must come here at the same ticks, with as many lanes.
        """
        votes = torch.tensor([BY_CAUTION.index(decision) for decision in decisions], device=self.device)
        for group in self.groups:
            dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=group)
        return [BY_CAUTION[vote] for vote in votes.tolist()]


def decide_together(denoiser: nn.Module, mesh: Any) -> None:
    """Declares that the processes of a mesh call `denoiser` together, so that their adaptive decisions are agreed.

    Needed only where the denoiser communicates in a way of its own: Diffusers' parallelism and sharded parameters are
    noticed. It holds from the next run on.

    Args:
        denoiser: accelerated or not, compiled or not.
        mesh: a `torch.distributed.device_mesh.DeviceMesh` (`DeviceMesh.from_group(group, "cuda")`), or None to find
            out again.

    Raises:
        TargetError: not a module.
    """
    if not isinstance(denoiser, nn.Module):
        raise TargetError(
            f"decide_together() takes a denoiser, not a {type(denoiser).__name__}: pass pipe.transformer or pipe.unet."
        )
    _declared[uncompiled(denoiser)] = mesh


def agreement_of(denoiser: nn.Module) -> Agreement | None:
    """That among the processes which compute this denoiser together; None where it is this one alone."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    declared = _declared.get(denoiser)
    meshes = [declared] if declared is not None else list(_parallelism_of(denoiser))
    dimensions = [(mesh, dimension) for mesh in meshes for dimension in range(mesh.ndim)]
    if declared is None:
        dimensions += _shards_of(denoiser)
    shared = [(mesh, dimension) for mesh, dimension in dimensions if mesh.size(dimension) > 1]
    return Agreement(shared) if shared else None


def gathers_weights(denoiser: nn.Module) -> bool:
    """Whether its blocks are fully sharded (FSDP): each gathers its weights when it is called, and drops them again."""
    if not dist.is_available() or not dist.is_initialized():
        return False
    from torch.distributed.fsdp import FSDPModule

    return any(isinstance(module, FSDPModule) for module in denoiser.modules())


def _parallelism_of(denoiser: nn.Module) -> Iterator[Any]:
    """The meshes of Diffusers' `enable_parallelism`."""
    config = getattr(denoiser, "_parallel_config", None)
    if config is not None and config.context_parallel_config is not None:
        yield config.context_parallel_config._flattened_mesh
    if config is not None and config.tensor_parallel_config is not None:
        yield config.tensor_parallel_config._mesh


def _shards_of(denoiser: nn.Module) -> Iterator[Dimension]:
    """Along which a parameter is split."""
    from torch.distributed.tensor import DTensor

    for parameter in denoiser.parameters():
        if isinstance(parameter, DTensor):
            for dimension, placement in enumerate(parameter.placements):
                if not placement.is_replicate():
                    yield parameter.device_mesh, dimension
