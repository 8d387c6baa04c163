"""What a method needs to know of a target's denoisers before any run, and the modules whose calls it needs to see."""

from collections import Counter
from collections.abc import Mapping
from weakref import ReferenceType, ref

from torch import nn

from diffcache.config import CacheConfig, RunFacts
from diffcache.discovery.missing_sites import missing_site, names_of_sites
from diffcache.discovery.site_names import is_inside, units_for
from diffcache.discovery.taps import Tap
from diffcache.discovery.units import block_counts, blocks_of
from diffcache.host.compiled import compiled_above, is_compiled, uncompiled
from diffcache.host.kept_with import KeptWith
from diffcache.host.network_facts import NetworkFacts
from diffcache.host.parallel import gathers_weights
from diffcache.schedulers.errors import ConfigError, TargetError


def facts_of(denoisers: Mapping[str, nn.Module], name: str) -> RunFacts:
    """Of one of a target's denoisers."""
    kinds = Counter(type(uncompiled(module)).__name__ for module in denoisers.values())
    plain = uncompiled(denoisers[name])
    kind = type(plain).__name__
    return RunFacts(kind, kinds[kind], denoiser=name, blocks=block_counts(plain))


def units_of(
    denoisers: Mapping[str, nn.Module], known: Mapping[str, NetworkFacts], config: CacheConfig
) -> list[nn.Module]:
    """The modules inside the denoisers whose calls the method needs to see.

    Args:
        denoisers: by name, compiled or not.
        known: of each denoiser, as it is now.
        config: the method.

    Raises:
        ConfigError: hindsight or decisions for each sample are asked for, and the method has sites inside a denoiser.
        TargetError: it has sites that a denoiser does not have, or sites inside a denoiser that is compiled or fully
            sharded, or inside a part that is compiled.
    """
    found: list[nn.Module] = []
    for name, module in denoisers.items():
        facts = facts_of(denoisers, name)
        sites = config.sites(facts)
        if is_inside(sites):
            for option in ("hindsight", "per_sample"):
                if getattr(config, option):
                    raise ConfigError(
                        f"{option}= is for whole denoisers: leave it out for {', '.join(sites)}."
                    )
            found += _watched(facts.denoiser_class, module, known[name].structure, sites, config.tap(facts))
        if config.token_rows(facts) is not None:
            found += blocks_with_rows(facts.denoiser_class, module, config)
    return list({id(module): module for module in found}.values())


_units: KeptWith[list[ReferenceType[nn.Module]]] = KeptWith(16)


def _watched(
    kind: str, module: nn.Module, structure: int, sites: tuple[str, ...], tap: Tap | None
) -> list[nn.Module]:
    """The units of sites inside a denoiser, and the modules that a tap watches: looked up once, and kept with it."""
    plain = uncompiled(module)
    key = structure, module is plain, sites, tap
    known = _units.get(plain, key)
    if known is None:
        units = _visible(kind, module, sites)
        found = [*units.values(), *(tap.modules(units) if tap else ())]
        _units.put(plain, key, [ref(unit) for unit in found])
        return found
    return [unit for reference in known if (unit := reference()) is not None]


def blocks_with_rows(kind: str, module: nn.Module, config: CacheConfig) -> list[nn.Module]:
    """The blocks of a denoiser of this kind, of which some tokens are computed.

    Raises:
        ConfigError: the method caches sites inside, or decides for each sample.
        TargetError: the denoiser's blocks cannot be seen.
    """
    facts = RunFacts(kind)
    if is_inside(config.sites(facts)) or config.per_sample:
        what = "decides for each sample" if config.per_sample else "caches sites inside the denoiser"
        raise ConfigError(
            f"rows= goes with methods that cache whole calls, and {config.name} {what}: choose another, such as speedup=."
        )
    plain = uncompiled(module)
    if is_compiled(module) or compiled_above(plain, blocks_of(plain)) is not None:
        raise TargetError(
            f"{kind} is compiled, so that rows= cannot gather its tokens: leave its blocks uncompiled."
        )
    if gathers_weights(plain):
        raise TargetError(
            f"{kind} is fully sharded (FSDP), so that rows= cannot gather its tokens: leave rows= out."
        )
    return list(blocks_of(plain).values())


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
