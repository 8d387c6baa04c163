"""Discovery: one watched forward shows where a denoiser can be cut, and where it must not be."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from diffcache.discovery.site_finder import Survey, parameters_of
from diffcache.discovery.sites import SiteTable
from diffcache.discovery.storage_trace import Trace
from diffcache.discovery.unit_recorder import Recorder
from diffcache.discovery.units import bare_parts_of_blocks, blocks_of, layers_of_blocks, sub_layers_of_blocks
from diffcache.hooks.class_swap import swapped
from diffcache.hooks.watcher import unit_members, watched
from diffcache.host.call import Call
from diffcache.host.compiled import uncompiled
from diffcache.schedulers.errors import TargetError


def discover(denoiser: nn.Module, *args: Any, **kwargs: Any) -> SiteTable:
    """Runs one forward and tells where the denoiser can be cached.

    Args:
        denoiser: any `torch.nn.Module`; it is left as it was.
        *args, **kwargs: the arguments of an example call, as the denoising loop gives them.

    Returns:
        A table of sites (whole model, stack, blocks, sub-layers, UNet depths) with their cost, and a reason for each
        that cannot be cached.

    Raises:
        TargetError: not a module, or there is no floating tensor among the arguments.
    """
    if not isinstance(denoiser, nn.Module):
        raise TargetError(f"discover() takes a denoiser (torch.nn.Module), not a {type(denoiser).__name__}.")
    module = uncompiled(denoiser)
    call = Call.of(module, args, kwargs)
    if not call.latents:
        raise TargetError(
            "discover() needs an example call: pass the denoiser's arguments, with a floating latent."
        )
    bare = bare_parts_of_blocks(module)
    units = blocks_of(module) | layers_of_blocks(module) | sub_layers_of_blocks(module) | bare
    with torch.no_grad(), swapped(units.values(), unit_members), Trace(call.latents) as trace:
        recorder = Recorder(units, trace)
        with watched(recorder):
            output = module(*args, **kwargs)
        recorder.finish()
        trace.read_at_end(leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
    return Survey(
        type(denoiser).__name__, parameters_of([module]), recorder.calls, trace, output, bare
    ).table()
