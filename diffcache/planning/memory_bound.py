"""Fitting: a method made to keep to a bound on its cache, by fewer bits, then host memory, then fewer places."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast

from diffcache.attach.attachment import DiffusionAttachment, Fitted
from diffcache.config import CacheConfig, RunFacts
from diffcache.host.components import denoisers_of
from diffcache.planning.plan import Plan, PlannedSite, plan_of
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.steps import MODEL

Place = tuple[str, str]
"""Of a denoiser: their names."""

NARROWER = (None, "bfloat16", "int8")
"""Formats, each about half of the one before, or less."""


def fitted_to(pipe: Any, attachment: DiffusionAttachment, call: Mapping[str, Any]) -> Fitted:
    """An attached pipeline's method for a call, which is rehearsed unless the last one was of the same form.

    Raises:
        ConfigError: not even the smallest cache keeps to the bound.
    """
    bound = attachment.max_cache_bytes
    if bound is None:
        return Fitted(attachment.config)
    parts = [*denoisers_of(pipe, attachment.components).values(), getattr(pipe, "scheduler", None)]
    form = tuple(map(id, parts)), _form(call)
    if attachment.fitted is None or attachment.fitted[0] != form:
        plan = plan_of(pipe, attachment.config, call, components=attachment.components)
        attachment.fitted = form, _fitted(attachment.config, plan, bound)
    return attachment.fitted[1]


class FewerPlaces:
    """A method at some of its places only.

    Args:
        config: the method.
        kept: these.
    """

    def __init__(self, config: CacheConfig, kept: Collection[Place]) -> None:
        self._config = config
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)

    def places(self, run: RunFacts) -> tuple[str, ...]:
        return tuple(sorted(name for denoiser, name in self._kept if denoiser == run.site))


def _fitted(config: CacheConfig, plan: Plan, bound: int) -> Fitted:
    smallest = plan.cache_bytes
    for fitted, size in _candidates(config, plan, bound):
        if size <= bound:
            return fitted
        smallest = min(smallest, size)
    raise ConfigError(
        f"max_cache_bytes={bound}: {config.name} cannot do with less than {smallest} bytes here: allow as much, or "
        "choose a method that caches fewer places."
    )


def _candidates(config: CacheConfig, plan: Plan, bound: int) -> Iterator[tuple[Fitted, int]]:
    """From the least to the most that is done to the method, each with the bytes that it would hold."""
    yield Fitted(config), plan.cache_bytes
    narrowest, notes = config, tuple[str, ...]()
    for storage in NARROWER[NARROWER.index(config.storage) + 1 :] if config.storage in NARROWER else ():
        narrowest, notes = config.replace(cache_dtype=storage), (f"features are kept in {storage}",)
        if not plan.on_host:
            yield Fitted(narrowest, notes), plan.holdings.bytes_in(storage)
    if not plan.on_host and not plan.on_cpu:
        yield Fitted(config.replace(cache_device="cpu"), ("features are kept in host memory",)), plan.others
    sizes = _sizes(plan, narrowest.storage)
    inside = [place for place in sizes if place[1] != MODEL]
    if plan.on_host or len(inside) < 2:
        return
    kept = worth_most(plan.sites, sizes, bound - plan.holdings.others) or {min(inside, key=sizes.__getitem__)}
    left_out = f"{len(inside) - len(kept)} of {len(inside)} places are computed at every tick"
    fewer = cast(CacheConfig, FewerPlaces(narrowest, kept))
    yield Fitted(fewer, (*notes, left_out)), plan.holdings.others + sum(sizes[place] for place in kept)


def _sizes(plan: Plan, storage: str | None) -> dict[Place, int]:
    """Bytes that each place would hold in a format."""
    sizes = {(site.denoiser, site.name): 0 for site in plan.sites}
    for held in plan.holdings.features:
        sizes[held.denoiser, held.site] += held.bytes_in(storage)
    return sizes


def worth_most(sites: Sequence[PlannedSite], sizes: Mapping[Place, int], room: int) -> set[Place]:
    """The places inside that save most work for their bytes, as many as there is room for."""
    kept = set()
    for site in sorted(sites, key=lambda site: -site.share / max(sizes[site.denoiser, site.name], 1)):
        size = sizes[site.denoiser, site.name]
        if site.name != MODEL and size <= room:
            kept.add((site.denoiser, site.name))
            room -= size
    return kept


def _form(value: Any) -> Any:
    """What decides how much a call holds: texts and numbers as they are, of a tensor or picture its size."""
    if isinstance(value, Mapping):
        return tuple((key, _form(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_form, value))
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    size = value.shape if hasattr(value, "shape") else getattr(value, "size", None)
    return type(value), size if isinstance(size, tuple) else None
