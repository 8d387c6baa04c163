"""Whose pictures are compared with real ones: a setting of each contender at each budget, as the race chose it."""

from collections.abc import Sequence
from dataclasses import dataclass

from diffcache.evals.race import ours
from diffcache.evals.race.contender import Contender, Options, RaceSetup
from diffcache.evals.race.everybody import EVERYBODY
from diffcache.evals.race.frontier import best_below
from diffcache.evals.race.result import RaceResult
from diffcache.evals.race.standings import PEERS, names_of, own
from diffcache.evals.race.track import FULL

BUDGETS = (2.0, 3.0)
BEST_PEER, PUBLISHED = "best peer", "published"
TITLES = (
    FULL, ours.FEWER, own(ours.EVEN), BEST_PEER, PUBLISHED, own(ours.SPEEDUP), own(ours.TYPED), own(ours.TUNED),
)  # fmt: skip
"""In the order in which they are measured; what may still change comes last."""
ROUNDING = 1e-9


@dataclass(frozen=True)
class Entry:
    """A contender at one setting.

    Attributes:
        title: of `TITLES`.
        budget: times less compute; None for who has one setting whatever the budget.
        contender: None for the full run.
        options: the setting.
    """

    title: str
    budget: float | None
    contender: Contender | None
    options: Options


def entries(result: RaceResult, title: str) -> list[Entry]:
    """A setting for each budget that computes no more than the budget allows; nothing where the race has chosen none.

    Settings are not mixed, as pictures of two settings are no sample of one distribution.
    """
    if title == FULL:
        return [Entry(title, None, None, {})]
    if title in (ours.FEWER, BEST_PEER, PUBLISHED):
        found = (_chosen(result, title, budget) for budget in BUDGETS)
        return [entry for entry in found if entry is not None]
    (contender,) = (one for one in EVERYBODY if one.full_name == title)
    settings = [options for sweep in contender.sweeps(_setup(result)) for options in sweep]
    if contender.kind == "as typed":
        return [Entry(title, None, contender, options) for options in settings]
    return [Entry(title, budget, contender, _whole_ticks(settings, budget)) for budget in BUDGETS]


def _chosen(result: RaceResult, title: str, budget: float) -> Entry | None:
    """The best of a contender or a group on the samples that the race chose on."""
    rows = [row for name in _members(result, title) for row in result.of(name, "choose")]
    row = best_below(rows, 1 / budget)
    if row is None:
        return None
    contender = next(one for one in EVERYBODY if one.full_name == row.contender)
    return Entry(title, budget, contender, row.options)


def _members(result: RaceResult, title: str) -> Sequence[str]:
    if title == BEST_PEER:
        return names_of(result, PEERS)
    return [one.full_name for one in EVERYBODY if title in (one.full_name, one.group)]


def _whole_ticks(settings: Sequence[Options], budget: float) -> Options:
    """The smallest speed-up that a budget allows: one setting is as many ticks as fit in it."""
    return min(
        (options for options in settings if options["speedup"] >= budget - ROUNDING),
        key=lambda options: float(options["speedup"]),
    )


def _setup(result: RaceResult) -> RaceSetup:
    return RaceSetup(result.testbed, result.steps)
