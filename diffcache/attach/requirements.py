"""What a method needs to know of a target's denoisers before any run, and the modules whose calls it needs to see."""

from collections import Counter
from collections.abc import Mapping

from torch import nn

from diffcache.config import CacheConfig, RunFacts
from diffcache.discovery.missing_sites import missing_site, names_of_sites
from diffcache.discovery.site_names import is_inside, units_for
from diffcache.discovery.units import block_counts
from diffcache.host.compiled import compiled_above, is_compiled, uncompiled
from diffcache.host.parallel import gathers_weights
from diffcache.schedulers.errors import ConfigError, TargetError


def facts_of(denoisers: Mapping[str, nn.Module], name: str) -> RunFacts:
    """Of one of a target's denoisers."""
    kinds = Counter(type(uncompiled(module)).__name__ for module in denoisers.values())
    plain = uncompiled(denoisers[name])
    kind = type(plain).__name__
    return RunFacts(kind, kinds[kind], denoiser=name, blocks=block_counts(plain))


def units_of(denoisers: Mapping[str, nn.Module], config: CacheConfig) -> list[nn.Module]:
    """The modules inside the denoisers whose calls the method needs to see.

    Raises:
        ConfigError: hindsight is asked for, and the method has sites inside a denoiser.
        TargetError: it has sites that a denoiser does not have, or sites inside a denoiser that is compiled or fully
            sharded, or inside a part that is compiled.
    """
    found: list[nn.Module] = []
    for name, module in denoisers.items():
        facts = facts_of(denoisers, name)
        sites = config.sites(facts)
        if is_inside(sites):
            if config.hindsight:
                raise ConfigError(f"hindsight= is for whole denoisers: leave it out for {', '.join(sites)}.")
            units, tap = _visible(facts.denoiser_class, module, sites), config.tap(facts)
            found += [*units.values(), *(tap.modules(units) if tap else ())]
    return list({id(module): module for module in found}.values())


def _visible(kind: str, module: nn.Module, sites: tuple[str, ...]) -> dict[str, nn.Module]:
    """The units of sites inside a denoiser of this kind, whose calls can be seen."""
    plain, named = uncompiled(module), ", ".join(map(repr, sites))
    if is_compiled(module):
        raise TargetError(
            f"{kind} is compiled as a whole, so that {named} inside it cannot be cached: compile its blocks instead "
            "(compile_repeated_blocks), or cache the whole model."
        )
    if gathers_weights(plain):
        raise TargetError(
            f"{kind} is fully sharded (FSDP), so that {named} inside it cannot be cached: cache the whole model."
        )
    missing = missing_site(plain, sites)
    if missing is not None:
        raise TargetError(f"{kind} has no site {missing!r}: choose among {names_of_sites(plain)}.")
    units = units_for(plain, sites)
    hiding = compiled_above(plain, units)
    if hiding is not None:
        raise TargetError(
            f"{kind}.{hiding} is compiled, so that {named} inside it cannot be cached: cache its blocks, its stack or "
            "the whole model, or leave its blocks uncompiled."
        )
    return units
