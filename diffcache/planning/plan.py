"""Plan: what would be attached to a target, and what a run of it would compute and hold."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from diffcache.attach.requirements import facts_of
from diffcache.config import CacheConfig, RunFacts
from diffcache.discovery.sites import Site
from diffcache.engine.guidance_watch import GuidanceWatch
from diffcache.planning.dry_run import DryRun, dry_run
from diffcache.planning.footprint import FirstCallNeed, Footprint
from diffcache.planning.meta_engine import MetaEngine
from diffcache.reports.run_report import RunReport
from diffcache.schedulers.steps import MODEL
from diffcache.tokens.row_rule import Region

REGION = "an edit's region is known in the run only: the work is less by what it leaves out"

GUIDED = "this is for usual guidance: where the first tick of a run shows that it is stronger or weaker, other ticks may be computed"


@dataclass(frozen=True)
class PlannedSite:
    """A site that is cached.

    Attributes:
        denoiser: whose.
        name, kind: as `discover` lists it.
        share: of the denoiser's work.
        cache_bytes: of all its guidance passes together, at the run's fullest.
    """

    denoiser: str
    name: str
    kind: str
    share: float
    cache_bytes: int


@dataclass(frozen=True)
class Plan:
    """What a run would do. Bytes are exact; of an adaptive method they are a bound.

    Attributes:
        method, options: what is attached.
        sites: what is cached.
        passes: by denoiser, its guidance passes and how they are told apart.
        foreseen: the run's decisions. An adaptive method's depend on the run: here it computes everything.
        decided: "before" the run, "in" the run (an adaptive method), or before it, and in it a watch may compute "more".
        cache_dtype: format of what is stored (see `cache_dtype`); None for as computed.
        on_host: it lies in host memory.
        on_cpu: the denoisers run on the CPU, whose memory that is.
        most: ticks that are computed at most, where the method bounds them.
        footprint: what is held at the run's fullest.
        others: most bytes that are held beside what is stored.
        first_calls: what the first calls of guidance passes need, with sites inside a denoiser.
        notes: what was done to keep to `max_cache_bytes`, and what is not known yet.
    """

    method: str
    options: dict[str, Any]
    sites: tuple[PlannedSite, ...]
    passes: dict[str, str]
    foreseen: RunReport
    decided: str
    cache_dtype: str | None
    on_host: bool
    on_cpu: bool
    most: int | None
    footprint: Footprint
    others: int
    first_calls: tuple[FirstCallNeed, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def compute_fraction(self) -> float:
        """Share of the work that is computed: exact, at least, or at most, as `decided` says."""
        if (
            self.decided != "in" or self.most is None
        ):  # guards may compute more than a method whose ticks are known beforehand
            return self.foreseen.compute_fraction
        return min(self.foreseen.compute_fraction, self.most / self.foreseen.num_ticks)

    @property
    def cache_bytes(self) -> int:
        """Most bytes that are held at once on the device that computes."""
        return self.others if self.on_host else self.footprint.bytes_in(self.cache_dtype)

    @property
    def first_call_bytes(self) -> int:
        """Most bytes that a guidance pass's first call needs beyond a plain call, on the device that computes.

        It includes what is stored by then. It is 0 for whole denoisers, which store when their plain call is over.
        """
        return self._first_call_bytes(self.cache_dtype, on_host=self.on_host)

    def most_bytes(self, cache_dtype: str | None, *, on_host: bool) -> int:
        """Most bytes on the device that computes, if features were stored so: between calls and in first calls."""
        between = self.others if on_host else self.footprint.bytes_in(cache_dtype)
        return max(between, self._first_call_bytes(cache_dtype, on_host=on_host))

    @property
    def host_bytes(self) -> int:
        """Most bytes that are held at once in host memory instead."""
        return sum(held.bytes_in(self.cache_dtype) for held in self.footprint.features) if self.on_host else 0

    def _first_call_bytes(self, cache_dtype: str | None, *, on_host: bool) -> int:
        needs = (need.beside_host if on_host else need.bytes_in(cache_dtype) for need in self.first_calls)
        return max(needs, default=0)

    def __str__(self) -> str:
        ticks, computed = self.foreseen.num_ticks, len(self.foreseen.computed_ticks)
        work = f"{computed} of {ticks} ticks, {self.compute_fraction:.1%} of the work"
        if self.decided == "in":
            work = f"at most {self.most or ticks} of {ticks} ticks: depends on the run"
        elif self.decided == "more":
            work = f"at least {work}: a watch may ask for more"
        memory = "host memory" if self.on_host else "memory of the device"
        lines = [f"{self.method}:"]
        lines += [f"  {line}" for line in _site_lines(self.sites)]
        lines += [f"  passes    {name}: {rule}" for name, rule in self.passes.items()]
        lines.append(f"  computes  {work}")
        size = self.host_bytes if self.on_host else self.cache_bytes
        held = f"{size / 2**20:.2f} MiB, {self.cache_dtype or 'as computed'}, in {memory}"
        if self.first_calls:
            held += f"; first call: {self.first_call_bytes / 2**20:.2f} MiB more than a plain one at most"
        lines.append(f"  holds     {held}")
        lines += [f"  note      {note}" for note in self.notes]
        return "\n".join(lines)


def outline(config: CacheConfig, denoisers: dict[str, nn.Module]) -> str:
    """What is known before any call: the method, where it caches, and in which format."""
    lines = [f"diffcache: {config}"]
    for name in denoisers:
        facts = facts_of(denoisers, name)
        lines.append(f"  caches    {name}: {', '.join(config.sites(facts))}")
    lines.append(f"  holds     features {config.cache_dtype or 'as computed'}")
    lines.append("  plan(target, ...) with a call's arguments tells passes, compute share and bytes")
    return "\n".join(lines)


def plan_of(
    target: Any,
    config: CacheConfig,
    call: Mapping[str, Any],
    notes: tuple[str, ...] = (),
    components: Collection[str] | None = None,
) -> Plan:
    """Goes through a call without computing it (see `dry_run`, which tells what it raises)."""
    shown = dry_run(target, config, call, components)
    facts = [engine.choices.facts for engine in shown.engines]
    if any(_waits_for_a_region(config, fact) for fact in facts):
        notes = (*notes, REGION)
    if len(facts) == 1 and _may_be_planned_anew(config, facts[0]):
        notes = (*notes, GUIDED)
    return Plan(
        method=config.name,
        options=config.options(),
        sites=tuple(site for engine in shown.engines for site in _sites(engine, shown, config.cache_dtype)),
        passes={engine.name: _passes(engine, shown) for engine in shown.engines},
        foreseen=RunReport(config.name, config.options(), shown.records),
        decided=_decided(shown.engines, config),
        cache_dtype=config.cache_dtype,
        on_host=any(config.format(fact).memory.on_host for fact in facts),
        on_cpu=all(fact.device.type == "cpu" for fact in facts),
        most=max((most for most in map(config.most_ticks, facts) if most is not None), default=None),
        footprint=shown.fullest,
        others=shown.others,
        first_calls=tuple(shown.first_calls),
        notes=notes,
    )


def _may_be_planned_anew(config: CacheConfig, run: RunFacts) -> bool:
    """Whether the first step may show guidance that is not as was planned: only pure noise shows how strong it is."""
    begins_later = bool(run.moments) and not run.moments[0].is_pure_noise
    is_told = run.guidance.scale is not None
    return GuidanceWatch.is_needed(config, run.guidance) and not (is_told and begins_later)


def _waits_for_a_region(config: CacheConfig, run: RunFacts) -> bool:
    rule = config.token_rows(run)
    return rule is not None and isinstance(rule.source, Region)


def _sites(engine: MetaEngine, shown: DryRun, cache_dtype: str | None) -> list[PlannedSite]:
    sizes: dict[str, int] = {}
    for held in shown.fullest.features:
        if held.denoiser == engine.name:
            sizes[held.site] = sizes.get(held.site, 0) + held.bytes_in(cache_dtype)
    known = engine.sites or (Site(MODEL, MODEL, (), (), 0, 1.0),)
    found = [
        PlannedSite(engine.name, site.name, site.kind, site.share, sizes.pop(site.name, 0)) for site in known
    ]
    if engine.tokens is not None:  # whatever else is held: keys and values, and the last block's output
        name = f"{engine.tokens.first}..{engine.tokens.last}"
        found.append(PlannedSite(engine.name, name, "tokens", engine.tokens.share, sum(sizes.values())))
    return found


def _passes(engine: MetaEngine, shown: DryRun) -> str:
    if len(engine.names) == 1:
        return "both guidance passes in one call, decided together" if engine.is_doubled else "one"
    if engine.is_doubled:
        how = "taken apart from one call"
    else:
        how = "told apart by " + ("the names the loop gives them" if shown.contexts else "their conditioning")
    return f"{', '.join(engine.names)}, {how}"


def _decided(engines: Sequence[MetaEngine], config: CacheConfig) -> str:
    if any(engine.is_adaptive for engine in engines):
        return "in"
    return "more" if config.watch_bound is not None else "before"


def _site_lines(sites: Sequence[PlannedSite]) -> list[str]:
    """One line for each denoiser and kind of site."""
    groups: dict[tuple[str, str], list[PlannedSite]] = {}
    for site in sites:
        groups.setdefault((site.denoiser, site.kind), []).append(site)
    return [
        f"caches    {denoiser}: "
        + (f"{kind} x {len(group)}" if len(group) > 1 else group[0].name)
        + f", {sum(site.share for site in group):.1%} of its work"
        for (denoiser, kind), group in groups.items()
    ]
