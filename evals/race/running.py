"""Runs the race on one testbed."""

from collections.abc import Iterable, Sequence
from typing import Any

from tqdm import tqdm

from diffcache.evals.race.contender import Contender
from diffcache.evals.race.course import Course, Lap
from diffcache.evals.race.outcome import Outcome
from diffcache.evals.race.verdict import BUDGETS, best, steps_within
from diffcache.schedulers.errors import TargetError

TIMED_AT = 2.0
"""Budget at which each contender's best lap is timed."""


def run_race(
    testbed: str,
    contenders: Sequence[Contender],
    *,
    samples: int,
    steps: int,
    rounds: int,
    provenance: dict[str, Any],
) -> Outcome:
    """Everybody on one testbed.

    Args:
        samples: seeds.
        steps: of the full run.
        rounds: pairs of renderings for each time; 0 for no times.
    """
    course = Course(testbed, samples, steps)
    laps, refused = [], {}
    for contender in tqdm(contenders, desc=testbed):
        found, why = _sweep(course, contender)
        laps += _timed(course, contender, found, rounds) if rounds else found
        if why is not None:
            refused[f"{contender.package}: {contender.name}"] = why
    fewer = [lap for budget in BUDGETS for lap in course.fewer(steps_within(budget, steps))]
    return Outcome(testbed, samples, steps, course.full(), fewer, laps, refused, provenance)


def _sweep(course: Course, contender: Contender) -> tuple[list[Lap], str | None]:
    """Laps at all settings, or why there are none. Whatever a peer raises is its answer, and is published."""
    laps: list[Lap] = []
    refusal = TargetError if contender.ours else Exception
    for setting in contender.settings:
        try:
            lap = course.lap(contender, setting)
        except refusal as error:
            return laps, f"{type(error).__name__}: {error}".splitlines()[0]
        if not laps and lap.compute == 1:
            return [], "attaches, but reuses nothing at the setting that should compute least"
        laps.append(lap)
    return laps, None


def _timed(course: Course, contender: Contender, laps: list[Lap], rounds: int) -> list[Lap]:
    fastest: Iterable[Lap | None] = (best(laps, TIMED_AT),)
    return [course.timed(lap, contender, rounds) if lap in fastest else lap for lap in laps]
