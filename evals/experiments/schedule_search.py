"""A search for schedules: by dynamic programming, then by evolution or by training a router; and a comparison of what it found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffcache.evals.experiments import baselines as controls
from diffcache.evals.harness.calls import Split
from diffcache.evals.harness.comparison import Comparison, Row
from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.recording.processes import broadcast, is_first
from diffcache.profiling.recording.record import record
from diffcache.profiling.searching.confirming import confirmed
from diffcache.profiling.searching.dynamic_programming import VARIANTS, dynamic_programming
from diffcache.profiling.searching.evolving import Budget, EvolutionSettings, evolve
from diffcache.profiling.searching.fronts import best_within, write_front
from diffcache.profiling.searching.polishing import even, polished
from diffcache.profiling.searching.probing import probed
from diffcache.profiling.searching.routing import routed, train_router
from diffcache.profiling.searching.scoring import Cost, Loss, Scorer
from diffcache.profiling.searching.space import Space
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.search.harmonica import Training

FINALISTS = 4
"""For each share, how many of evolution's best schedules are compared with dynamic programming's."""

Schedules = dict[str, Schedule]
"""By the name that the table shows."""


@dataclass(frozen=True)
class Evolution:
    """Options of an evolution: when it ends, how many tables survive a generation, and the cost that is measured of each."""

    budget: Budget
    population: int
    cost: Cost | None


@dataclass(frozen=True)
class RouterTraining:
    """Options of a router's training: runs, learning rate, and a saved schedule to begin with (None: dynamic programming's)."""

    runs: int
    lr: float
    begin: Path | None


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched, and how.

    Attributes:
        shares: of the full run's work; a schedule is searched for each.
        predictor: what fills in at reused ticks, as `Schedule.predictor`.
        sites: what is cached, as for `UniformConfig.site`.
        loss: what evolution and the local search minimise.
        folder: where schedules and checkpoints are saved.
        seed: of evolution and training.
        polish: candidates of a local search after dynamic programming, for each share; None: no local search.
        then: what follows dynamic programming; None: nothing.
    """

    shares: Sequence[float]
    predictor: Mapping[str, Any]
    sites: str
    loss: Loss
    folder: Path
    seed: int = 0
    polish: int | None = None
    then: Evolution | RouterTraining | None = None


def searched(pipe: Any, split: Split, search: Search) -> Schedules:
    """The schedules that were found, each saved in a folder of its own under `search.folder`.

    Dynamic programming is left out for a router that begins with a saved schedule.
    """
    calls = split.searched
    space = Space(record(pipe, calls, sites=search.sites, basis=search.predictor["basis"]), search.predictor)
    found: Schedules = {}
    if not (isinstance(search.then, RouterTraining) and search.then.begin):
        one_by_one = search.sites != "model" and not isinstance(search.then, RouterTraining)
        plans = list(VARIANTS) if one_by_one else ["shared"]
        each_site = one_by_one or isinstance(search.then, Evolution)
        space = broadcast(probed(pipe, calls, space, each_site=each_site))
        for share in search.shares:
            found |= {f"dp, {plan}, {share:.0%}": dynamic_programming(space, share, plan) for plan in plans}
    if search.polish:
        found |= _polished(pipe, split, space, search)
    _save(found, search.folder)  # before the part that takes longest and may fail
    if isinstance(search.then, Evolution):
        learned = _evolved(pipe, split, space, search, found)
    elif isinstance(search.then, RouterTraining):
        learned = _routed(pipe, split, space, search)
    else:
        learned = {}
    _save(learned, search.folder)
    return found | learned


def compared(
    comparison: Comparison,
    found: Schedules,
    shares: Sequence[float],
    *,
    hindsight: bool = False,
    calibration: Sequence[Call] = (),
) -> list[Row]:
    """The schedules on held-out samples, beside other methods at about the same compute.

    Args:
        comparison: of the held-out samples.
        found: the schedules.
        shares: of the full run's work; uniform reuse, and as many even ticks, are added for each.
        hindsight: add uniform reuse with hindsight, and let ERTACache have it.
        calibration: calls for the other baselines; none: these are left out.
    """
    rows = [comparison.method(name, ReplayConfig(schedule=schedule)) for name, schedule in found.items()]
    for share in shares:
        rows += controls.uniform(comparison, share) + controls.even(comparison, share)
        rows += controls.uniform(comparison, share, hindsight=True) if hindsight else []
        rows += controls.baselines(comparison, calibration, share, hindsight=hindsight) if calibration else []
    return rows


def _save(found: Schedules, folder: Path) -> None:
    if is_first():
        for name, schedule in found.items():
            schedule.save_pretrained(folder / name.replace(", ", "-").replace("%", ""))


def _polished(pipe: Any, split: Split, space: Space, search: Search) -> Schedules:
    """For each share, as many evenly spread ticks as dynamic programming has, and what a local search makes of both."""
    trial = Scorer(pipe, split.searched, space, search.loss)
    found = {}
    for share in search.shares:
        begin = dynamic_programming(space, share).decisions[:, 0]
        table = broadcast(polished(trial, begin, search.polish or 0))
        found[f"even, {share:.0%}"] = space.schedule(even(space, int(begin[:, 0].sum())), {})
        found[f"dp, polished, {share:.0%}"] = space.schedule(table, {"method": "local search"})
    return found


def _evolved(pipe: Any, split: Split, space: Space, search: Search, begin: Schedules) -> Schedules:
    """For each share, the best schedule of an evolution that begins with what was found before.

    With samples to confirm on it must be better on these than dynamic programming's, which stands otherwise.
    """
    assert isinstance(search.then, Evolution)
    scorer = Scorer(pipe, split.searched, space, search.loss, search.then.cost)
    settings = EvolutionSettings(population=search.then.population, seed=search.seed)
    tables = torch.stack([schedule.decisions[:, 0] for schedule in begin.values()])
    evolution = evolve(scorer, search.folder, search.then.budget, settings, begin=tables)
    if is_first():
        write_front(evolution, space, search.folder)
    runs = FullRuns(pipe, split.confirming) if split.confirming else None
    found = {}
    for share in search.shares:
        tables = best_within(evolution, share, FINALISTS)
        best, *_ = finalists = [space.schedule(table, {"method": "evolution"}) for table in tables]
        if runs is not None:
            best = broadcast(confirmed(runs, begin[f"dp, shared, {share:.0%}"], finalists))
        found[f"evolved, {share:.0%}"] = best
    return found


def _routed(pipe: Any, split: Split, space: Space, search: Search) -> Schedules:
    """For each share, the schedule of a router that is trained."""
    options = search.then
    assert isinstance(options, RouterTraining)
    found = {}
    for share in search.shares:
        training = Training(target=share, runs=options.runs, lr=options.lr, seed=search.seed)
        begin = (
            _table(options.begin, space)
            if options.begin
            else dynamic_programming(space, share).decisions[:, 0]
        )
        folder = search.folder / f"router-{share:.0%}".replace("%", "")
        router = train_router(pipe, split.searched, space, folder, training, begin=begin)
        found[f"router, {share:.0%}"] = routed(router, space, share)
    return found


def _table(folder: Path, space: Space) -> Tensor:
    """The computed ticks of a saved schedule, whatever its sites, as a table of all of this space's: bool [T, S]."""
    ticks = Schedule.from_pretrained(folder).decisions.any(-1).any(-1)
    return ticks.unsqueeze(1).repeat(1, len(space.sites))
