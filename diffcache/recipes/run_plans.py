"""Where runs are computed: the plans of `trajectory`, which runs that are alike share."""

from dataclasses import replace
from functools import cache, lru_cache

import numpy as np

from diffcache.config import RunFacts
from diffcache.prediction.hindsight import LARGEST_RATIO
from diffcache.recipes.budgeted import evenly
from diffcache.schedulers.guards import Guards
from diffcache.schedulers.moments import Moment
from diffcache.trajectory.known import Course, ErrorModelFor, Known
from diffcache.trajectory.plan import HELD, LONGEST_MOVED, Start, TrajectoryPlan, planned
from diffcache.trajectory.search import through
from diffcache.trajectory.transfer import OWN


def course_of(run: RunFacts, amplification: float | None = None) -> Course:
    """What a plan needs to know of a run. Perhaps only the number of its ticks is known.

    Args:
        run: the run.
        amplification: by guidance, where it was measured (see `Guidance`); it counts whatever the run's scale is.
    """
    moments = run.moments or tuple(map(Moment, range(run.num_ticks or 0)))
    guidance = (
        run.guidance if amplification is None else replace(run.guidance, scale=None, shown=amplification)
    )
    return Course(moments, run.influence, guidance.strength, run.clipped_influence, run.adds_noise)


@lru_cache(maxsize=64)
def plan_of_run(known: Known, hindsight: bool, course: Course, count: int, guards: Guards) -> TrajectoryPlan:
    """The plan of a run; runs that are alike share it.

    Where reused ticks are predicted with the universal covariance, though another one was measured, ticks are those of the plan with the measured one, and predictions are as
    careful as in the universal plan. Ticks that are chosen for these predictions turned out worse.
    """
    if known.predicts_with != OWN:
        own, universal = (
            plan_of_run(of, hindsight, course, count, guards) for of in (known.as_planned, known.universal)
        )
        if not own.corrects or not universal.corrects:
            return own
        error = error_models_of(known, hindsight, course)(universal.caution, True)
        return replace(own, caution=universal.caution, expected=error.likely(own.ticks))
    errors, start = error_models_of(known, hindsight, course), _start(known, course, count, guards)
    if course.adds_noise:  # velocities follow the noise, so none tells of a later one
        even = tuple(start.even)
        return TrajectoryPlan(even, HELD, errors(HELD, False).likely(even), corrects=False)
    starts = [start]
    is_open = guards.tail_steps == 0 and chooses_last(course) and not course.ends_short
    if is_open and count > max(guards.warmup_steps, 1):
        starts.insert(0, _start(known, course, count, replace(guards, tail_steps=1)))
    return planned(errors, starts, is_own=known.covariance is not None)


def chooses_last(course: Course) -> bool:
    """Whether plans with the last tick are compared with plans without it."""
    return course.influence is not None and len(course.moments) <= LONGEST_MOVED


def _start(known: Known, course: Course, count: int, guards: Guards) -> Start:
    """Evenly spaced ticks, among them all that have to be computed."""
    ticks = len(course.moments)
    ends = {0, *range(min(guards.warmup_steps, ticks)), *range(max(ticks - guards.tail_steps, 0), ticks)}
    forced = {*ends, *known.handovers_in(ticks)}
    even = through(np.array([evenly(ticks, max(count, len(forced)), guards)]), forced)[0].tolist()
    return Start(even, forced)


@lru_cache(maxsize=4)
def error_models_of(known: Known, hindsight: bool, course: Course) -> ErrorModelFor:
    """The errors of a run's result, which all its plans share."""
    # Where the noise scheduler adds noise or clips, nothing is corrected.
    ratio = LARGEST_RATIO if hindsight and course.influence is not None else 0.0
    return cache(known.error_models(course, ratio))


def forget() -> None:
    """Forgets all plans: the next run makes its own."""
    plan_of_run.cache_clear()
    error_models_of.cache_clear()
