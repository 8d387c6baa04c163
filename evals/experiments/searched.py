"""What searched schedules give on a testbed beside as many even ticks; and at numbers of steps that they were not searched for."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from diffcache.evals.experiments.schedule_search import Evolution, Search, searched
from diffcache.evals.experiments.transfer import beside_even
from diffcache.evals.harness.calls import calls_of_testbed, of_testbed
from diffcache.evals.harness.comparison import Comparison
from diffcache.profiling.searching.evolving import Budget
from diffcache.profiling.searching.scoring import minus_psnr
from diffcache.profiling.searching.space import EXTRAPOLATE

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
    others = []
    for steps in OTHER_STEPS:
        (call,) = calls_of_testbed(testbed, "heldout", range(samples), steps)
        others.append(Comparison(pipe, call, referenced=False))
    rows = []
    with TemporaryDirectory() as folder:
        found = searched(pipe, split, _search(Path(folder)))
    for title, schedule in found.items():
        search = title.split(",")[0]
        for each in [comparison, *others] if search == "dp" else [comparison]:
            own, even = beside_even(each, schedule)
            figures = {"ticks": own.ticks, "psnr": own.psnr_full, "even": even.psnr_full}
            rows.append({"search": search, "steps": own.total, **figures})
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
