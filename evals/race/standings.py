"""Who stands where: at each budget the contenders' scores, and paired differences between them."""

from collections.abc import Sequence
from dataclasses import dataclass

from diffcache.evals.harness.intervals import mean_with_interval
from diffcache.evals.race import ours
from diffcache.evals.race.budgets import budgets_for
from diffcache.evals.race.contender import full_name
from diffcache.evals.race.frontier import Figure, Pair
from diffcache.evals.race.result import RaceResult
from diffcache.evals.race.run import pair_on, to_full, to_truth

PEERS = ("cache-dit", "diffusers", "DeepCache")
PUBLISHED = tuple(one.name for one in ours.CONTENDERS if one.group == "published")
"""Published methods as we implement them."""


@dataclass(frozen=True)
class Standing:
    """A contender at a budget.

    Attributes:
        contender: its full name.
        budget: times less compute.
        pair: the settings that were chosen for it.
        figure: what is compared: distance to the full run, or to 1000 steps.
    """

    contender: str
    budget: float
    pair: Pair
    figure: Figure

    @property
    def db(self) -> float:
        """Mean over the scored samples, in dB."""
        return self.pair.mean(1 / self.budget, self.figure)

    @property
    def compute(self) -> float:
        return self.pair.compute(1 / self.budget)

    @property
    def solver(self) -> str:
        """The noise scheduler that was chosen."""
        return str(self.pair.low.options.get("solver", "own"))

    def ahead_of(self, other: "Standing") -> "Difference":
        """By how much this is better, sample by sample."""
        share = 1 / self.budget
        each = self.pair.values(share, self.figure) - other.pair.values(share, other.figure)
        return Difference(*mean_with_interval(each))


@dataclass(frozen=True)
class Difference:
    """A mean over paired samples in dB, and its bootstrap interval of 95 %."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


def standing(result: RaceResult, contender: str, budget: float, figure: Figure = to_full) -> Standing | None:
    """A contender at a budget; None where nothing of it was scored."""
    pair = pair_on(result, contender, budget, figure)
    return None if pair is None else Standing(contender, budget, pair, figure)


def best_of(result: RaceResult, contenders: Sequence[str], budget: float) -> Standing | None:
    """The best of some contenders at a budget, as it was chosen: by the samples that are not scored."""
    found = [standing(result, contender, budget) for contender in contenders]
    return max((one for one in found if one is not None), key=lambda one: _chosen(result, one), default=None)


def _chosen(result: RaceResult, one: Standing) -> float:
    """A standing's mean on the samples that settings were chosen on; -inf for who had nothing to choose."""
    rows = [result.find(one.contender, row.options, "choose") for row in (one.pair.low, one.pair.high)]
    low, high = rows
    if low is None or high is None:
        return -float("inf")
    return Pair(low, high).mean(1 / one.budget, to_full)


def names_of(result: RaceResult, packages: Sequence[str]) -> list[str]:
    """Full names of the contenders of some packages whose settings were chosen."""
    names = dict.fromkeys(row.contender for row in result.rows if row.part == "choose")
    return [name for name in names if name.split(":")[0] in packages]


def own(name: str) -> str:
    """The full name of a contender of ours."""
    return full_name("diffcache", name)


def full_run_to_truth(result: RaceResult) -> float | None:
    """PSNR of the full run to 1000 steps, in dB."""
    rows = result.of("full run", "score")
    return rows[0].mean_truth if rows and rows[0].truth else None


def at_budgets(result: RaceResult) -> list[float]:
    """The budgets at which the plain pipeline with fewer steps has been scored."""
    return [budget for budget in budgets_for(result.steps) if standing(result, ours.FEWER, budget)]


def truth_standing(result: RaceResult, name: str, budget: float) -> Standing | None:
    """A contender's distance to 1000 steps; None where these were not rendered."""
    if full_run_to_truth(result) is None:
        return None
    found = standing(result, name, budget, to_truth)
    return found if found is not None and found.pair.low.truth else None
