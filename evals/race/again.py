"""One cell of the race, measured again: does it come out as it was published?"""

from dataclasses import dataclass
from pathlib import Path

from diffcache.evals.errors import EvaluationError
from diffcache.evals.harness.intervals import mean_with_interval
from diffcache.evals.harness.unseen import judged_on
from diffcache.evals.race.contender import Contender, RaceSetup
from diffcache.evals.race.frontier import Pair
from diffcache.evals.race.result import RaceResult
from diffcache.evals.race.row import Row
from diffcache.evals.race.run import pair_on, to_full
from diffcache.evals.race.track import Track


@dataclass(frozen=True)
class Cell:
    """A contender on a testbed at a budget.

    Attributes:
        published: mean PSNR to the full run over the scored samples, in dB.
        low, high: its bootstrap interval of 95 %.
        again: the same mean of a new measurement.
    """

    published: float
    low: float
    high: float
    again: float

    @property
    def agrees(self) -> bool:
        return self.low <= self.again <= self.high


def measured_again(path: Path, contender: Contender, budget: float) -> Cell:
    """Measures a cell again, on the same prompts and seeds.

    Args:
        path: of the published result.
        contender: who.
        budget: times less compute.

    Raises:
        EvaluationError: the result has no such cell.
    """
    result = RaceResult.load(path)
    pair = pair_on(result, contender.full_name, budget)
    if pair is None:
        raise EvaluationError(
            f"{path} has no cell of {contender.full_name} at {budget:g}x: race it first, python scripts/measure/race.py."
        )
    track = Track(RaceSetup(result.testbed, result.steps))

    def anew(row: Row) -> Row:
        return track.measured(contender, row.options, "score")

    with judged_on(result.testbed):
        low = anew(pair.low)
        now = Pair(low, low if pair.high is pair.low else anew(pair.high))
    each = pair.values(1 / budget, to_full)
    return Cell(*mean_with_interval(each), now.mean(1 / budget, to_full))
