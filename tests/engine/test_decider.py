"""What the decider decides at several sites of one denoiser."""

from collections.abc import Sequence

import pytest
import torch

from diffcache.config import RunFacts
from diffcache.discovery.sites import Site
from diffcache.engine.branch import Branch
from diffcache.engine.choices import choices_of
from diffcache.engine.decider import Decider
from diffcache.noise_schedulers.timetable import Timetable
from diffcache.prediction.predictors import Hold
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.by_site import BySite
from diffcache.schedulers.guards import CAP, Guards, History
from diffcache.schedulers.interval import Interval
from diffcache.schedulers.steps import Decision, Step, Verdict
from diffcache.store.formats import Format
from diffcache.store.rings import StoreSetup


class Differing(UniformConfig):
    """Computes "b" twice as often as "a"."""

    def scheduler(self, run: RunFacts) -> BySite:  # type: ignore[override]
        return BySite(lambda step: Interval(4 if step.site == "a" else 2))


def decided(config: UniformConfig, tick: int, stored: dict[str, int]) -> dict[str, Verdict]:
    """The leading branch's verdicts at a tick, by site, each of which has stored a feature at some tick."""
    facts = RunFacts(denoiser_class="Net", experts=1, num_ticks=9, denoiser="net")
    decider = Decider(choices_of(config, facts), agreement=None)
    branch = Branch("0", None, StoreSetup(Hold(), Format(), Timetable(9)))
    branch.tick = tick
    for site, last in stored.items():
        branch.store(site).push(last, 0, [(torch.zeros(1), None)])
    decider.begin_call(branch, tick, 1)
    sites = [Site(name, "block", (name,), (), 0, 0.1) for name in stored]
    decided = decider.site_verdicts(Step(tick, 9, "0"), branch, sites, lambda lane: [])
    return {step.site: verdict for step, [verdict] in decided}


def test_sites_of_different_age_are_decided_apart() -> None:
    config = UniformConfig(interval=4, warmup_steps=0, tail_steps=0, max_consecutive_reuses=1)
    found = decided(config, 5, {"a": 4, "b": 2, "c": 4})
    assert found == {
        "a": Verdict(Decision.PREDICT),
        "b": Verdict(Decision.COMPUTE, CAP),
        "c": Verdict(Decision.PREDICT),
    }


def test_a_scheduler_that_tells_sites_apart_is_asked_about_each() -> None:
    found = decided(Differing(warmup_steps=0, tail_steps=0), 2, {"a": 0, "b": 0})
    assert found == {"a": Verdict(Decision.PREDICT), "b": Verdict(Decision.COMPUTE)}


class OnlyFirst(Guards):
    """Computes "a" at every tick."""

    def forces_compute(self, step: Step, history: History) -> str | None:
        return "asked for" if step.site == "a" else super().forces_compute(step, history)


class Guarded(UniformConfig):
    def guards(self, run: RunFacts) -> Guards:
        return OnlyFirst(0, 0)


class LooksAtSites(Interval):
    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        return Decision.COMPUTE if step.site == "a" else super().decide(step, signal)


class Looking(UniformConfig):
    def scheduler(self, run: RunFacts) -> Interval:
        return LooksAtSites(4)


@pytest.mark.parametrize("config", [Guarded, Looking])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_guards_and_schedulers_made_of_ours_may_look_at_sites(
    config: type[UniformConfig], order: str
) -> None:
    found = decided(config(interval=4, warmup_steps=0, tail_steps=0), 2, dict.fromkeys(order, 0))
    assert found["a"].decision is Decision.COMPUTE
    assert found["b"].decision is Decision.PREDICT
