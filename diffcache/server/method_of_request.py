"""The method of a request, from what `Server.request` was given."""

from __future__ import annotations

from typing import Any

from torch import nn

from diffcache.api import method_for
from diffcache.attach.requirements import facts_of
from diffcache.config import CacheConfig
from diffcache.discovery.site_names import is_inside
from diffcache.host.compiled import uncompiled
from diffcache.host.parallel import agreement_of
from diffcache.recipes.with_rows import WithRows, source_of
from diffcache.schedulers.errors import ConfigError
from diffcache.tokens.row_rule import Source


def method_of_request(
    denoiser: nn.Module,
    config: Any,
    speedup: float | None,
    rows: Any,
    options: dict[str, Any],
    *,
    bounded: bool,
) -> CacheConfig | None:
    """The method that a request is served with; None where nothing is cached.

    Args:
        denoiser: that is served.
        config, speedup, rows, options: as given to `Server.request`.
        bounded: the server keeps to a bound on bytes.

    Raises:
        ConfigError, ScheduleError, TargetError: as `accelerate`; ConfigError also for what a request or a bounded server cannot have.
    """
    if config is None and speedup is None:
        if options:
            raise ConfigError(f"{', '.join(options)}: name the method that these are options of, config=.")
        if rows is not None:
            raise ConfigError("rows= goes with a method: name it, config=, or pass speedup=.")
        return None
    chosen = method_for(denoiser, config, speedup=speedup, **options)
    if rows is not None:
        chosen = WithRows(base=chosen, source=_source_of(rows))
    facts = facts_of({"denoiser": denoiser}, "denoiser")
    unsettled = is_inside(chosen.sites(facts)) or chosen.guidance(facts) is not None
    together = agreement_of(uncompiled(denoiser)) is not None
    if unsettled and together and bounded:
        raise ConfigError(
            f"max_cache_bytes= with {chosen.name} and several processes: these could drop different caches, and would then "
            "wait for each other for ever. Choose a method that caches the whole denoiser, or leave the bound out."
        )
    return chosen


def _source_of(rows: Any) -> Source:
    """What `rows=` of a request means."""
    source = source_of(rows)
    if source is None:
        raise ConfigError(
            'rows="mask" takes the mask_image of a pipeline, and a request has none: pass rows=mask itself.'
        )
    return source
