"""Runs the race on one testbed."""

from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from diffcache.evals.race.contender import Contender
from diffcache.evals.race.margins import BUDGETS, best, steps_within
from diffcache.evals.race.raced_testbed import Measurement, RacedTestbed
from diffcache.evals.race.result import RaceResult
from diffcache.schedulers.errors import TargetError

TIMED_AT = 2.0
"""The budget at which each contender's best setting is timed."""


def run_race(
    testbed: str,
    contenders: Sequence[Contender],
    *,
    samples: int,
    steps: int,
    rounds: int,
    header: dict[str, Any],
) -> RaceResult:
    """Measures all contenders on one testbed.

    Args:
        testbed: of `zoo.NAMES`.
        contenders: who takes part.
        samples: seeds.
        steps: of the full run.
        rounds: pairs of renderings for each loop time; 0 for no times.
        header: of the result.
    """
    raced = RacedTestbed(testbed, samples, steps)
    rows, refused = [], {}
    for contender in tqdm(contenders, desc=testbed):
        found, why = _all_settings(raced, contender)
        fastest = best(found, TIMED_AT) if rounds else None
        rows += [raced.timed(row, contender, rounds) if row is fastest else row for row in found]
        if why is not None:
            refused[contender.full_name] = why
    fewer_steps = [row for budget in BUDGETS for row in raced.fewer_steps(steps_within(budget, steps))]
    return RaceResult(
        header=header,
        testbed=testbed,
        samples=samples,
        steps=steps,
        full=raced.full(),
        fewer_steps=fewer_steps,
        rows=rows,
        refused=refused,
    )


def _all_settings(raced: RacedTestbed, contender: Contender) -> tuple[list[Measurement], str | None]:
    """Measurements at all settings, or why there are none.

    Whatever a peer raises is published as its reason; our own methods may only refuse the target.
    """
    rows: list[Measurement] = []
    refusal = TargetError if contender.ours else Exception
    for setting in contender.settings:
        try:
            row = raced.measured(contender, setting)
        except refusal as error:
            return rows, f"{type(error).__name__}: {error}".splitlines()[0]
        if not rows and row.compute == 1:
            return [], "attaches, but reuses nothing at the setting that should compute least"
        rows.append(row)
    return rows, None
