"""By how much our methods are ahead: the best measurement of each package within a budget of compute."""

from collections.abc import Iterable
from dataclasses import dataclass

from diffcache.evals.race.contender import OURS
from diffcache.evals.race.ours import HOLDING
from diffcache.evals.race.raced_testbed import Measurement
from diffcache.evals.race.result import RaceResult

BUDGETS = (1.5, 2.0, 3.0)
"""Times less compute than the full run."""
SLACK = 0.01
"""Share of the full run's compute by which a budget may be exceeded, because steps are whole."""


@dataclass(frozen=True)
class Margin:
    """At a budget, the best of ours and of one peer by PSNR to the full run.

    Attributes:
        testbed, budget: where.
        peer: a package.
        ours, default, holding: the best of ours, of our default at any threshold, and of ours that only hold.
        theirs: the best of the peer; None where no setting of it is within the budget.
        fewer_steps: the best of the plain pipelines with fewer steps.
    """

    testbed: str
    budget: float
    peer: str
    ours: Measurement
    default: Measurement | None
    holding: Measurement | None
    theirs: Measurement | None
    fewer_steps: Measurement

    @property
    def over_peer(self) -> float | None:
        """Ours minus the peer's, in dB."""
        return None if self.theirs is None else self.ours.psnr_full - self.theirs.psnr_full

    @property
    def over_fewer_steps(self) -> float:
        """Ours minus fewer steps, in dB."""
        return self.ours.psnr_full - self.fewer_steps.psnr_full


def steps_within(budget: float, steps: int) -> int:
    """The most steps of the plain pipeline that a budget allows."""
    return int((1 / budget + SLACK) * steps)


def best(rows: Iterable[Measurement], budget: float) -> Measurement | None:
    """Of the measurements within a budget the one nearest to the full run; None where none is within it."""
    within = [row for row in rows if row.compute <= 1 / budget + SLACK]
    return max(within, key=lambda row: row.psnr_full, default=None)


def margins(result: RaceResult) -> list[Margin]:
    """One for each budget and peer.

    Raises:
        ValueError: nothing of ours, or no run with fewer steps, is within a budget.
    """
    found = []
    own = [row for row in result.rows if row.package == OURS]
    for budget in BUDGETS:
        ours, fewer_steps = best(own, budget), best(result.fewer_steps, budget)
        if ours is None or fewer_steps is None:
            raise ValueError(f"{result.testbed}: nothing to compare at {budget:g}x; race at lower settings.")
        default = best((row for row in own if row.name == "default"), budget)
        holding = best((row for row in own if row.name in HOLDING), budget)
        for peer in result.peers:
            theirs = best((row for row in result.rows if row.package == peer), budget)
            found.append(Margin(result.testbed, budget, peer, ours, default, holding, theirs, fewer_steps))
    return found
