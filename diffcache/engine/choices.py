"""What a method chooses for one denoiser in one run: where, when, how, and repaired how."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from diffcache.config import CacheConfig, GuidanceRule, RunFacts
from diffcache.discovery.taps import Tap
from diffcache.prediction.correctors import Corrector
from diffcache.prediction.predictors import Predictor
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.guards import Guards
from diffcache.store.formats import Format
from diffcache.store.streams import Basis
from diffcache.tokens.row_rule import RowRule


@dataclass(frozen=True, slots=True)
class Choices:
    """A method for one denoiser in one run. The engine knows this, and no config.

    Attributes:
        facts: what is known of the run.
        sites: where: names or kinds of sites (see `diffcache.discovery.site_names`).
        sites_in: the same, of the guidance pass of a name.
        tap: what signals are measured on; None for the denoiser's latents.
        basis: what is stored of an output.
        scheduler: when: makes a fresh cache scheduler.
        guards: what may turn a reuse into a compute.
        watch_bound: see `PredictionWatch`; None: predictions are not watched.
        predictor: how.
        corrector: repaired how; None for not at all.
        hindsight: reused ticks are corrected when the next one is computed.
        last_step: weights with which the sample after the last step is corrected (see `LastStep`); None for not at all.
        format: how features lie in memory.
        cache_dtype: the name of that format's dtype; None for as computed.
        guidance_rule: when and how the unconditional pass is rebuilt; None to treat all passes alike.
        per_sample: every sample of a batch is decided by itself.
        each_branch: every branch is decided by itself.
        rows: which tokens computed calls compute; None for all.
    """

    facts: RunFacts
    sites: tuple[str, ...]
    sites_in: Callable[[str], tuple[str, ...]]
    tap: Tap | None
    basis: Basis
    scheduler: Callable[[], CacheScheduler]
    guards: Guards
    watch_bound: float | None
    predictor: Predictor
    corrector: Corrector | None
    hindsight: bool
    last_step: tuple[float | None, ...] | None
    format: Format
    cache_dtype: str | None
    guidance_rule: GuidanceRule | None
    per_sample: bool
    each_branch: bool
    rows: RowRule | None = None


def choices_of(config: CacheConfig, facts: RunFacts) -> Choices:
    """What a method chooses for a run. An affine repair is no weighted sum of features, so it has no hindsight."""
    corrector = config.corrector(facts)
    return Choices(
        facts=facts,
        sites=config.sites(facts),
        sites_in=partial(config.sites_in, facts),
        tap=config.tap(facts),
        basis=config.stored_basis,
        scheduler=lambda: config.scheduler(facts),
        guards=config.guards(facts),
        watch_bound=config.watch_bound,
        predictor=config.predictor_for(facts),
        corrector=corrector,
        hindsight=config.corrects(facts) and facts.evolves and corrector is None,
        last_step=config.last_step(facts) if facts.evolves else None,
        format=config.format(facts),
        cache_dtype=config.cache_dtype,
        guidance_rule=config.guidance(facts),
        per_sample=config.per_sample,
        each_branch=config.each_branch,
        rows=config.token_rows(facts),
    )
