"""`discover`: runs one forward, and lists the sites at which a denoiser can be cached."""

from typing import Any

import torch
from torch import nn

from diffcache.discovery.site_finder import SiteFinder
from diffcache.discovery.sites import SiteTable
from diffcache.discovery.unit_recorder import UnitRecorder
from diffcache.discovery.units import bare_parts_of_blocks, blocks_of, layers_of_blocks, sub_layers_of_blocks
from diffcache.hooks.attachments import swapped
from diffcache.hooks.watcher import unit_members
from diffcache.host.call import Call
from diffcache.host.compiled import uncompiled
from diffcache.schedulers.errors import TargetError


def discover(denoiser: nn.Module, *args: Any, **kwargs: Any) -> SiteTable:
    """Runs one forward, and lists the sites at which the denoiser can be cached.

    Args:
        denoiser: any `torch.nn.Module`; it is left as it was.
        *args, **kwargs: the arguments of an example call, as the denoising loop gives them.

    Returns:
        A table of sites (whole model, stack, blocks, sub-layers, UNet depths) with their cost. A site that cannot be
        cached has a reason.

    Raises:
        TargetError: `denoiser` is not a module, or there is no floating tensor among the arguments.
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
    recorder = UnitRecorder(units, call.latents)
    with torch.no_grad(), swapped(units.values(), unit_members):
        output = recorder.record(lambda: module(*args, **kwargs))
    return SiteFinder(module, recorder.calls, recorder.trace, output, bare).table
