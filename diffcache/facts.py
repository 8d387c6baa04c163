"""What is known of a target's denoisers before any run: facts for the method, and the modules that it needs to see."""

from collections import Counter
from collections.abc import Mapping

from torch import nn

from diffcache.compiled import uncompiled
from diffcache.config import CacheConfig, RunFacts
from diffcache.places import is_inside, units_for
from diffcache.schedulers.errors import TargetError
from diffcache.units import block_counts


def facts_of(denoisers: Mapping[str, nn.Module], name: str) -> RunFacts:
    """Of one of a target's denoisers."""
    kinds = Counter(type(uncompiled(module)).__name__ for module in denoisers.values())
    plain = uncompiled(denoisers[name])
    kind = type(plain).__name__
    return RunFacts(kind, kinds[kind], site=name, blocks=block_counts(plain))


def units_of(denoisers: Mapping[str, nn.Module], config: CacheConfig) -> list[nn.Module]:
    """The modules inside the denoisers whose calls the method needs to see.

    Raises:
        TargetError: it has places inside a denoiser that is compiled as a whole.
    """
    found: list[nn.Module] = []
    for name, module in denoisers.items():
        plain, facts = uncompiled(module), facts_of(denoisers, name)
        places = config.places(facts)
        if not is_inside(places):
            continue
        if plain is not module:
            raise TargetError(
                "sites inside a denoiser that is compiled as a whole cannot be cached: compile its blocks."
            )
        units, tap = units_for(plain, places), config.tap(facts)
        found += [*units.values(), *(tap.modules(units) if tap else ())]
    return list({id(module): module for module in found}.values())
