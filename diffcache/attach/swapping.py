"""Swaps classes: of several objects, or of none."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from diffcache.attach.overrides import denoiser_members
from diffcache.attach.requirements import units_of
from diffcache.config import CacheConfig
from diffcache.hooks.attachments import release
from diffcache.hooks.class_swap import Override, swap_in
from diffcache.hooks.watcher import unit_members
from diffcache.host.compiled import uncompiled
from diffcache.host.components import refuse_foreign_cache
from diffcache.host.network_facts import NetworkFacts
from diffcache.schedulers.errors import TargetError


def swap_in_all(
    denoisers: dict[str, nn.Module],
    facts: Mapping[str, NetworkFacts],
    config: CacheConfig | None,
    others: Sequence[tuple[Any, Override]] = (),
) -> list[Any]:
    """Swaps the classes of denoisers, compiled or not, of the units that a method needs to see, and of other objects: all of them or none.

    Args:
        denoisers: by name.
        facts: of the denoisers now.
        config: the method; None where no unit needs to be seen.
        others: objects and what their classes override.

    Returns:
        The objects whose swap the method needs.

    Raises:
        TargetError: a denoiser is cached by somebody else, or a class cannot be swapped. Nothing is swapped then.
    """
    for name, module in denoisers.items():
        refuse_foreign_cache(module, hooked=facts[name].has_foreign_hook)
    parts = {id(m): m for module in denoisers.values() for m in (module, uncompiled(module))}
    wanted: list[tuple[Any, Override]] = [(part, denoiser_members) for part in parts.values()]
    units = [] if config is None else units_of(denoisers, facts, config)
    wanted += [(unit, unit_members) for unit in units]
    wanted += others
    done: list[Any] = []
    for part, override in wanted:
        try:
            if swap_in(part, override):
                done.append(part)
        except Exception as error:
            release(done)
            raise TargetError(
                f"cannot attach to {type(part).__name__}: its class cannot be swapped ({error})."
            ) from error
    return [part for part, _ in wanted]
