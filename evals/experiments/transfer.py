"""What a schedule gives at other numbers of steps or other resolutions, beside as many even ticks of the same predictor."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from diffcache.evals.harness.comparison import Comparison, Row
from diffcache.evals.testbeds import zoo
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.schedule import ALL, Schedule, marks_of
from diffcache.schedulers.ticks import spread


def transferred(
    pipe: Any, testbed: str, schedule: Schedule, steps: Sequence[int], sizes: Sequence[int], samples: int
) -> Iterator[Row]:
    """Two rows for each setting: the schedule's own, other numbers of steps, other heights and widths in pixels."""
    settings: list[Mapping[str, int]] = [{"num_inference_steps": n} for n in (schedule.num_ticks, *steps)]
    settings += [{"height": size, "width": size} for size in sizes]
    for setting in settings:
        call = {**zoo.sample_call(testbed, 0, schedule.num_ticks, samples), **setting}
        name = ", ".join(f"{key} {value}" for key, value in setting.items())
        yield from beside_even(Comparison(pipe, call, referenced=False), schedule, f"{name}: ")


def beside_even(comparison: Comparison, schedule: Schedule, name: str = "") -> tuple[Row, Row]:
    """A schedule, resampled where the call is not the one it was made for, and as many even ticks.

    Raises:
        ConfigError: its sites compute at ticks of their own, of which no even ticks are as many.
    """
    if len({tuple(sorted(rows.items())) for rows in schedule.table.values()}) > 1:
        raise ConfigError(
            "the schedule's sites compute at ticks of their own, and even ticks are for all sites: give one of all sites together."
        )
    own = comparison.method(f"{name}the schedule", ReplayConfig(schedule=schedule, resample=True))
    even = replace(schedule, table=_even(schedule, own.total, own.ticks), sigmas=None, corrections={})
    control = comparison.method(f"{name}even ticks", ReplayConfig(schedule=even, resample=True))
    assert (control.ticks, control.compute) == (own.ticks, own.compute)
    return own, control


def _even(schedule: Schedule, steps: int, count: int) -> dict[str, dict[str, str]]:
    chosen = spread(steps, count)
    return {site: {ALL: marks_of(tick in chosen for tick in range(steps))} for site in schedule.table}
