"""MemoryBound: a method made to keep to a bound on its cache, by fewer bits, then host memory, then fewer sites."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

from diffcache.attach.attachment import CallConfig
from diffcache.config import CacheConfig, RunFacts
from diffcache.host.components import denoisers_of, is_pipeline
from diffcache.planning.plan import Plan, PlannedSite, plan_of
from diffcache.recipes.derived_config import DerivedConfig
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.numbers_given import check_bytes
from diffcache.schedulers.steps import MODEL
from diffcache.store.formats import narrower_than

SiteKey = tuple[str, str]
"""Names of a denoiser and of a site in it."""


class MemoryBound:
    """What the runs of a pipeline may hold at once on its device.

    Args:
        config: the method.
        max_cache_bytes: the bound.
        components: the pipeline's denoisers that are cached; None for all.
    """

    def __init__(
        self, config: CacheConfig, max_cache_bytes: int, components: Collection[str] | None = None
    ) -> None:
        self.config = config
        self.max_cache_bytes = max_cache_bytes
        self.components = components
        self._last: tuple[Any, Change] | None = None

    def config_for(self, pipeline: Any, call: Mapping[str, Any]) -> CallConfig:
        """The config for a call. The call is planned (a dry run) unless the last one was of the same form.

        Raises:
            ConfigError: not even the smallest cache keeps to the bound.
        """
        form, last = self._form_of(pipeline, call), self._last
        config = self.config.for_call(call)  # calls of one form may have different masks
        if last is None or last[0] != form:
            plan = plan_of(pipeline, config, call, components=self.components)
            self._last = last = form, _change_within(config, plan, self.max_cache_bytes)
        return last[1].of(config)

    def _form_of(self, pipeline: Any, call: Mapping[str, Any]) -> Any:
        """What decides how much a call holds."""
        denoisers = denoisers_of(pipeline, self.components).values()
        kinds = [{(weight.dtype, weight.device) for weight in net.parameters()} for net in denoisers]
        scheduler = getattr(pipeline, "scheduler", None)
        # Another object may come to lie where one of these lay; a reference to what is gone equals no other.
        parts = [ref(part) for part in (*denoisers, scheduler) if part is not None]
        return parts, kinds, _form(call)


def check_bound(target: Any, max_cache_bytes: Any) -> None:
    """Refuses what is no bound, or a target whose calls cannot be planned.

    Raises:
        ConfigError: no whole number of bytes above 0, or no pipeline.
    """
    check_bytes(max_cache_bytes)
    if not is_pipeline(target):
        raise ConfigError(
            "max_cache_bytes= needs a Diffusers pipeline, whose calls can be planned: choose cache_dtype= instead."
        )


@dataclass(frozen=True, kw_only=True)
class AtSites(DerivedConfig):
    """A method at some of its sites only.

    Attributes:
        kept: these, by denoiser and site.
    """

    kept: frozenset[SiteKey]

    def sites(self, run: RunFacts) -> tuple[str, ...]:
        return tuple(sorted(name for denoiser, name in self.kept if denoiser == run.denoiser))

    def sites_in(self, run: RunFacts, branch: str) -> tuple[str, ...]:
        return self.sites(run)


@dataclass(frozen=True)
class Change:
    """What is changed of a method to keep to a bound.

    Attributes:
        options: of the method, with their new values.
        kept: the sites that are cached, by denoiser and site; None: all of them.
        notes: what was changed, in sentences for the report.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    kept: frozenset[SiteKey] | None = None
    notes: tuple[str, ...] = ()

    def of(self, config: CacheConfig) -> CallConfig:
        """The method, changed."""
        changed = config.replace(**self.options) if self.options else config
        if self.kept is not None:
            changed = AtSites(base=changed, kept=self.kept)
        return CallConfig(changed, self.notes)


def _change_within(config: CacheConfig, plan: Plan, bound: int) -> Change:
    smallest = plan.most_bytes(plan.cache_dtype, on_host=plan.on_host)
    for chosen, size in _candidates(config, plan, bound):
        if size <= bound:
            return chosen
        smallest = min(smallest, size)
    raise ConfigError(
        f"max_cache_bytes={bound}: {config.name} cannot do with less than {smallest} bytes here: allow as much, or "
        "choose a method that caches fewer sites."
    )


def _candidates(config: CacheConfig, plan: Plan, bound: int) -> Iterator[tuple[Change, int]]:
    """Ever larger changes of the method, each with the bytes that it would then hold."""
    yield Change(), plan.most_bytes(plan.cache_dtype, on_host=plan.on_host)
    narrowest = Change()
    for storage in narrower_than(config.cache_dtype):
        narrowest = Change({"cache_dtype": storage}, notes=(f"features are kept in {storage}",))
        if not plan.on_host:
            yield narrowest, plan.most_bytes(storage, on_host=False)
    if not plan.on_host and not plan.on_cpu:
        yield (
            Change({"cache_device": "cpu"}, notes=("features are kept in host memory",)),
            plan.most_bytes(config.cache_dtype, on_host=True),
        )
    sizes = _sizes(plan, narrowest.options.get("cache_dtype", config.cache_dtype))
    inside = [site for site in sizes if site[1] != MODEL]
    if plan.on_host or len(inside) < 2:
        return
    kept = worth_most(plan.sites, sizes, bound - plan.footprint.others) or {
        min(inside, key=sizes.__getitem__)
    }
    left_out = f"{len(inside) - len(kept)} of {len(inside)} sites are computed at every tick"
    fewer = Change(narrowest.options, frozenset(kept), (*narrowest.notes, left_out))
    yield fewer, plan.footprint.others + sum(sizes[site] for site in kept)


def _sizes(plan: Plan, storage: str | None) -> dict[SiteKey, int]:
    """Bytes that each site would hold in a format; keys and values of tokens belong to none."""
    sizes = {(site.denoiser, site.name): 0 for site in plan.sites if site.kind != "tokens"}
    for held in plan.footprint.features:
        if (held.denoiser, held.site) in sizes:
            sizes[held.denoiser, held.site] += held.bytes_in(storage)
    return sizes


def worth_most(sites: Sequence[PlannedSite], sizes: Mapping[SiteKey, int], room: int) -> set[SiteKey]:
    """The sites inside a denoiser that save most work for their bytes, as many as there is room for."""
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
    if size == ():  # a number of NumPy or PyTorch
        return value.item()
    return type(value), size if isinstance(size, tuple) else None
