"""DerivedConfig: a method that is another one, but for what is overridden."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor, nn
from typing_extensions import Self

from diffcache.config import CacheConfig, GuidanceRule, RunFacts
from diffcache.discovery.taps import Tap
from diffcache.prediction.correctors import Corrector, Repair
from diffcache.prediction.predictors import Predictor
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.guards import Guards
from diffcache.store.formats import Format
from diffcache.store.streams import Basis
from diffcache.tokens.row_rule import RowRule


@dataclass(frozen=True, kw_only=True)
class DerivedConfig(CacheConfig):
    """Another method, but for what a subclass overrides. Its name, its options and what it saves are those of that method.

    Attributes:
        base: that method; the shared options are read from it.
    """

    base: CacheConfig

    def __post_init__(self) -> None:
        for option in fields(CacheConfig):
            object.__setattr__(self, option.name, getattr(self.base, option.name))
        object.__setattr__(self, "name", self.base.name)

    def options(self) -> dict[str, Any]:
        return self.base.options()

    def replace(self, **options: Any) -> Self:
        """A copy in which some options of the base are changed."""
        return replace(self, base=self.base.replace(**options))

    def resolved(self) -> CacheConfig:
        return replace(self, base=self.base.resolved())

    def check(self, denoisers: Mapping[str, nn.Module]) -> None:
        self.base.check(denoisers)

    def sites(self, run: RunFacts) -> tuple[str, ...]:
        return self.base.sites(run)

    def sites_in(self, run: RunFacts, branch: str) -> tuple[str, ...]:
        return self.base.sites_in(run, branch)

    def tap(self, run: RunFacts) -> Tap | None:
        return self.base.tap(run)

    @property
    def stored_basis(self) -> Basis:
        return self.base.stored_basis

    def format(self, run: RunFacts) -> Format:
        return self.base.format(run)

    @property
    def own_hindsight(self) -> bool | None:
        return self.base.own_hindsight

    @property
    def watch_bound(self) -> float | None:
        return self.base.watch_bound

    @property
    def needs_influence(self) -> bool:
        return self.base.needs_influence

    @property
    def counts_guidance(self) -> bool:
        return self.base.counts_guidance

    @property
    def counts_amplification(self) -> bool:
        return self.base.counts_amplification

    @property
    def per_sample(self) -> bool:
        return self.base.per_sample

    @property
    def each_branch(self) -> bool:
        return self.base.each_branch

    def guidance(self, run: RunFacts) -> GuidanceRule | None:
        return self.base.guidance(run)

    def scheduler(self, run: RunFacts) -> CacheScheduler:
        return self.base.scheduler(run)

    def warmup(self, run: RunFacts) -> int:
        return self.base.warmup(run)

    def tail(self, run: RunFacts) -> int:
        return self.base.tail(run)

    def most_ticks(self, run: RunFacts) -> int | None:
        return self.base.most_ticks(run)

    def remark(self, run: RunFacts) -> str | None:
        return self.base.remark(run)

    def predictor_for(self, run: RunFacts) -> Predictor:
        return self.base.predictor_for(run)

    def corrects(self, run: RunFacts) -> bool:
        return self.base.corrects(run)

    def token_rows(self, run: RunFacts) -> RowRule | None:
        return self.base.token_rows(run)

    def for_call(self, call: Mapping[str, Any]) -> CacheConfig:
        return replace(self, base=self.base.for_call(call))

    def corrector(self, run: RunFacts) -> Corrector | None:
        return self.base.corrector(run)

    def last_step(self, run: RunFacts) -> tuple[float | None, ...] | None:
        return self.base.last_step(run)

    def corrections(self, run: RunFacts) -> Mapping[str, Tensor]:
        return self.base.corrections(run)

    def repairs(self, site: str, quantization: str | None) -> Mapping[str, Repair]:
        return self.base.repairs(site, quantization)

    def respaced(self, sigmas: list[float]) -> list[float] | None:
        return self.base.respaced(sigmas)

    def guards(self, run: RunFacts) -> Guards:
        return self.base.guards(run)
