"""What searched schedules give on a testbed beside as many even ticks; and at numbers of steps that they were not searched for."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from diffcache.evals.experiments.schedule_search import Evolution, Search, searched
from diffcache.evals.harness.calls import calls_of_testbed, of_testbed
from diffcache.evals.harness.comparison import Comparison
from diffcache.profiling.searching.evolving import Budget
from diffcache.profiling.searching.scoring import minus_psnr
from diffcache.profiling.searching.space import EXTRAPOLATE
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.schedule import ALL, Schedule, marks_of
from diffcache.schedulers.ticks import spread

STEPS = 24
OTHER_STEPS = (16, 36)
TICKS = (13, 9)
"""Computed of the full run's; a schedule is searched for each."""

SEARCHED, CONFIRMING = 8, 16
"""Samples that candidates are rendered of, and on which an evolved schedule has to beat dynamic programming's."""

CANDIDATES, POPULATION = 40, 24
"""Of an evolution."""

PREDICTOR: Mapping[str, Any] = {**EXTRAPOLATE, "hindsight": True}
"""As `tune --engine dp` and `--engine evolution` have it for whole denoisers."""


def measured(testbed: str, samples: int) -> dict[str, Any]:
    """PSNR in dB to full runs, medians over samples with prompts and seeds that no search saw."""
    pipe, split = of_testbed(testbed, STEPS, SEARCHED, CONFIRMING, samples)
    comparison = Comparison(pipe, split.held_out, referenced=False)
    others = [
        Comparison(pipe, *calls_of_testbed(testbed, "heldout", range(samples), steps), referenced=False)
        for steps in OTHER_STEPS
    ]
    rows = []
    with TemporaryDirectory() as folder:
        found = searched(pipe, split, _search(Path(folder)))
    for title, schedule in found.items():
        search = title.split(",")[0]
        for each in [comparison, *others] if search == "dp" else [comparison]:
            rows.append({"search": search, **beside_even(each, schedule)})
            print(testbed, rows[-1], flush=True)
    return {"steps": STEPS, "searched_on": SEARCHED, "confirmed_on": CONFIRMING, "rows": rows}


def _search(folder: Path) -> Search:
    return Search(
        shares=[ticks / STEPS for ticks in TICKS],
        predictor=PREDICTOR,
        sites="model",
        loss=minus_psnr,
        folder=folder,
        then=Evolution(Budget(candidates=CANDIDATES), POPULATION, None),
    )


def beside_even(comparison: Comparison, schedule: Schedule) -> dict[str, Any]:
    """A schedule, resampled where the call has another number of steps, beside as many even ticks of the same predictor."""
    own = comparison.method("", ReplayConfig(schedule=schedule, resample=True))
    even = replace(schedule, table=dict(_even(schedule, own.total, own.ticks)), sigmas=None)
    control = comparison.method("", ReplayConfig(schedule=even))
    assert (control.ticks, control.compute) == (own.ticks, own.compute)
    return {"steps": own.total, "ticks": own.ticks, "psnr": own.psnr_full, "even": control.psnr_full}


def _even(schedule: Schedule, steps: int, count: int) -> Iterator[tuple[str, dict[str, str]]]:
    chosen = spread(steps, count)
    for site in schedule.table:
        yield site, {ALL: marks_of(tick in chosen for tick in range(steps))}
