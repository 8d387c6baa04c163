"""Makes processes that compute one denoiser together take the same decisions.

A forward that communicates must run in all of its processes, or in none: a process that computed while the others reused
would wait for them for ever. Such a denoiser is recognised if it is under Diffusers' context or tensor parallelism, or if
its parameters are sharded DTensors (tensor parallel, FSDP). `decide_together` declares any other. In plain data
parallelism each process decides for itself.
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
"""From the least to the most cautious decision. A process votes with its decision's index, and the highest vote wins."""

_declared: "WeakKeyDictionary[nn.Module, Any]" = WeakKeyDictionary()


class Agreement:
    """Agrees on decisions among the processes that compute one denoiser together.

    Args:
        dimensions: the dimensions of device meshes along which these processes lie; at least one.

    Attributes:
        always: every decision is settled, static ones and those of all guidance passes, too: a bound on memory may make one
            process compute.
    """

    always = False

    def __init__(self, dimensions: Sequence[Dimension]) -> None:
        groups = [mesh.get_group(dimension) for mesh, dimension in dimensions]
        self.groups = list({group.group_name: group for group in groups}.values())
        self.device = torch.device(dimensions[0][0].device_type)

    def settle(self, decisions: Sequence[Decision]) -> list[Decision]:
        """The most cautious decision of all processes, for each lane. Costs one small all-reduce for each process group.

        All processes must call this at the same ticks, with the same number of lanes.

        Args:
            decisions: this process's, one for each lane.
        """
        votes = torch.tensor([BY_CAUTION.index(decision) for decision in decisions], device=self.device)
        for group in self.groups:
            dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=group)
        return [BY_CAUTION[vote] for vote in votes.tolist()]


def decide_together(denoiser: nn.Module, mesh: Any) -> None:
    """Declares that the processes of a mesh compute `denoiser` together, so that they take the same decisions.

    Call it only for a denoiser that communicates in a way of its own: Diffusers' parallelism and sharded parameters are
    recognised without it. It takes effect at the next run.

    Args:
        denoiser: accelerated or not, compiled or not.
        mesh: a `torch.distributed.device_mesh.DeviceMesh` (`DeviceMesh.from_group(group, "cuda")`); None withdraws the
            declaration.

    Raises:
        TargetError: `denoiser` is not a module, or `mesh` is no mesh.
    """
    if not isinstance(denoiser, nn.Module):
        raise TargetError(
            f"decide_together() takes a denoiser, not a {type(denoiser).__name__}: pass pipe.transformer or pipe.unet."
        )
    if mesh is not None and not hasattr(mesh, "get_group"):
        raise TargetError(
            f"decide_together() takes a DeviceMesh of torch.distributed, or None, not {mesh!r}."
        )
    _declared[uncompiled(denoiser)] = mesh


def agreement_of(denoiser: nn.Module) -> Agreement | None:
    """The agreement among the processes that compute this denoiser together; None if this process computes it alone."""
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
    """Whether a module in it is fully sharded (FSDP): it gathers its weights for each call, and drops them after it."""
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
    """The dimensions of device meshes along which a parameter is split."""
    from torch.distributed.tensor import DTensor

    for parameter in denoiser.parameters():
        if isinstance(parameter, DTensor):
            for dimension, placement in enumerate(parameter.placements):
                if not placement.is_replicate():
                    yield parameter.device_mesh, dimension
