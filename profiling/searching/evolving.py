"""Evolution of schedules on a pipeline: seeded by dynamic programming, screened by an error model, safe to interrupt."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffcache.profiling.recording.calling import Call, calls_hash
from diffcache.profiling.searching.checkpoints import claimed, log_line
from diffcache.profiling.searching.dynamic import PLANS
from diffcache.profiling.searching.processes import divided, is_first, of_first, wait
from diffcache.profiling.searching.space import Space
from diffcache.profiling.searching.trial import Cost, Loss, Trial, minus_psnr
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.evolution import Evaluate, Evolution
from diffcache.schedulers.search.screening import Screening
from diffcache.schedulers.search.seeds import every, tgate
from diffcache.schedulers.search.surrogate import ErrorModel

SHARES = (0.25, 1 / 3, 0.42, 0.5, 2 / 3)
"""Of the full run's work, for which dynamic programming makes seeds."""
INTERVALS = (1, 2, 3, 4, 5)
CHECKPOINT, ABOUT, LOG = "search.safetensors", "search.json", "log.jsonl"

logger = logging.getLogger("diffcache")


@dataclass(frozen=True)
class Budget:
    """When a search ends: at the first generation that reaches one of these. None: no bound.

    Attributes:
        generations: counting the seeds as one.
        candidates: tables that were rendered, seeds included.
        minutes: of this process; a resumed search has them anew, and its end depends on the machine.

    Raises:
        ConfigError: there is no bound, or one that is not positive.
    """

    generations: int | None = None
    candidates: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        bounds = [bound for bound in (self.generations, self.candidates, self.minutes) if bound is not None]
        if not bounds or min(bounds) <= 0:
            raise ConfigError("budget: give a positive number of generations, candidates or minutes.")

    def spent(self, search: Evolution, minutes: float) -> bool:
        """Whether a search that has run for so long in this process is over."""
        return (
            (self.generations is not None and search.generation >= self.generations)
            or (self.candidates is not None and len(search.tables) >= self.candidates)
            or (self.minutes is not None and minutes >= self.minutes)
        )


def seeds(space: Space) -> Tensor:
    """Where a search begins, bool [n, T, S]: FORA's intervals, T-GATE's plan where there is cross-attention, and what
    each plan of dynamic programming makes of some shares of the compute."""
    ticks, sites = space.num_ticks, len(space.places)
    tables = [every(ticks, sites, interval) for interval in INTERVALS if interval <= ticks]
    if "cross-attention" in space.kinds:
        tables.append(tgate(ticks, space.kinds, gate=ticks // 2, interval=2))
    least = float(space.compute(every(ticks, sites, ticks)))
    tables += [
        plan(space, space.budget(share)) for share in SHARES if share > least for plan in PLANS.values()
    ]
    return torch.stack(tables)


def evolve(
    pipe: Any,
    calls: Sequence[Call],
    space: Space,
    folder: Path,
    budget: Budget,
    *,
    population: int = 24,
    children: int = 2,
    screened: bool = True,
    seed: int = 0,
    loss: Loss = minus_psnr,
    cost: Cost | None = None,
    begin: Tensor | None = None,
) -> Evolution:
    """Searches a front of quality and cost (NSGA-II, after ECAD, arXiv 2506.15682), and writes it down generation by generation.

    A folder that holds a search of the same space, calls and settings is gone on with, as if it had never stopped. Under
    `accelerate launch` each process renders its part of the candidates; the result is that of one process.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: what candidates are rendered from.
        space: what is searched.
        folder: for `search.safetensors` (the checkpoint), `search.json` (what it is of), and `log.jsonl`.
        budget: when it ends.
        population, children: how many survive a generation, and how many are rendered in one. The error model is fitted
            anew in each, so that few are best; give several processes at least one each.
        screened: an error model proposes which candidates are worth rendering; else all that are bred are.
        seed: of all randomness. With a deterministic pipeline the result is reproducible to the bit.
        loss: what is minimised besides the cost.
        cost: what is measured of each candidate (`wall_time`); None: its share of the full run's work.
        begin: tables that a new search begins with besides its `seeds`, bool [n, T, S]. The front is then nowhere worse
            than they are on these calls.

    Returns:
        The search; `front` holds the best tables, which `write_front` saves as schedules.

    Raises:
        ScheduleError: the folder holds another search.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "population": population,
        "children": children,
        "screened": screened,
        "seed": seed,
        "loss": _name(loss),
        "cost": "compute" if cost is None else _name(cost),
        "begin": None if begin is None else calls_hash([{"tables": begin}]),
    }
    if is_first():
        claimed(folder / ABOUT, {**space.about, "calls": calls_hash(calls), **settings})
    checkpoint = folder / CHECKPOINT
    if of_first(checkpoint.exists()):
        search = Evolution.load(checkpoint)
        logger.info("%s: going on after generation %d", folder, search.generation)
    else:
        first = seeds(space) if begin is None else torch.cat([begin, seeds(space)])
        search = Evolution(first, population=population, children=children, seed=seed)
    wait()
    evaluate = divided(Trial(pipe, calls, space, loss, cost))
    for _ in _within(search, evaluate, _screening(space) if screened else None, budget):
        if is_first():
            search.save(checkpoint)
            _log(folder / LOG, search)
    return search


def _within(
    search: Evolution, evaluate: Evaluate, screen: Screening | None, budget: Budget
) -> Iterator[Evolution]:
    begun = time.monotonic()
    going = search.generations(evaluate, screen)
    while not of_first(budget.spent(search, (time.monotonic() - begun) / 60)) and next(going, None):
        yield search


def _name(function: Callable[..., float]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _screening(space: Space) -> Screening:
    return Screening(ErrorModel(space.drifts, space.prices))


def _log(path: Path, search: Evolution) -> None:
    """One line for each generation."""
    front = search.front.scores.tolist()
    log_line(path, {"generation": search.generation, "candidates": len(search.tables), "front": front})
    best = ", ".join(f"{loss:.1f} at {cost:.0%}" for loss, cost in front)
    logger.info("generation %d, %d candidates: %s", search.generation, len(search.tables), best)
