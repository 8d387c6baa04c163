"""The table of docs/limits.md: every comparison in which a cached run is further from the full run than as many plain steps."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import stored
from diffcache.evals.race import ours
from diffcache.evals.race.result import RaceResult
from diffcache.evals.race.standings import at_budgets, own, standing

TYPED = {"prior": "speedup=", "tuned": "tune(speedup=)"}
"""Contenders in the results of `trajectory`, and what a user types for them."""


class Compared(NamedTuple):
    """What was typed, where, its computed ticks and all, and the dB that it gains on as many plain steps."""

    typed: str
    testbed: str
    ticks: int
    steps: int
    gain: float


def losses_table(races: Sequence[RaceResult]) -> str:
    """A row for each loss, the largest first, and how many comparisons there were; a sentence where there is no loss."""
    found = [*_at_speedups(), *_at_thresholds(), *_raced(races)]
    lost = sorted((one for one in found if one.gain < 0), key=lambda one: one.gain)
    if not lost:
        return f"Of {len(found)} comparisons none is a loss."
    rows = (
        [f"`{one.typed}`", one.testbed, f"{one.ticks} of {one.steps}", f"{one.gain:+.1f}"] for one in lost
    )
    head = ["typed", "testbed", "computed steps", "dB against as many plain steps"]
    return f"{markdown_table(head, rows)}\n\nThese are the losses among {len(found)} comparisons."


def _at_speedups() -> Iterator[Compared]:
    for testbed, result in stored("trajectory").items():
        for row in result["rows"]:
            for name, typed in TYPED.items():
                yield Compared(typed, testbed, row["ticks"], row["steps"], row[name] - row["fewer_steps"])


def _at_thresholds() -> Iterator[Compared]:
    for testbed, result in stored("threshold").items():
        for row in result["rows"]:
            if row["ticks"] < row["steps"]:
                typed = f"threshold={row['threshold']:g}"
                yield Compared(typed, testbed, row["ticks"], row["steps"], row["psnr"] - row["fewer_steps"])


def _raced(races: Sequence[RaceResult]) -> Iterator[Compared]:
    for result in races:
        for budget in at_budgets(result):
            mine, plain = standing(result, own(ours.SPEEDUP), budget), standing(result, ours.FEWER, budget)
            if mine is not None and plain is not None:
                ticks = round(result.steps * mine.pair.low.compute)
                yield Compared("speedup=", result.testbed, ticks, result.steps, mine.ahead_of(plain).mean)
