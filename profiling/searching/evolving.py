"""Evolution of schedules on a pipeline: seeded by dynamic programming, screened by an error model, and safe to interrupt."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from diffcache.profiling.recording.calling import calls_hash
from diffcache.profiling.recording.pipeline_facts import digests_of
from diffcache.profiling.recording.processes import broadcast, is_first, wait
from diffcache.profiling.searching.checkpoints import claim, log_line
from diffcache.profiling.searching.dynamic_programming import VARIANTS
from diffcache.profiling.searching.scoring import Scorer
from diffcache.profiling.searching.space import Space
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.evolution import Evaluate, Evolution
from diffcache.schedulers.search.screening import Screening
from diffcache.schedulers.search.seeds import every, tgate
from diffcache.schedulers.search.surrogate import ErrorModel

SHARES = (0.25, 1 / 3, 0.42, 0.5, 2 / 3)
"""Shares of the full run's work for which dynamic programming makes seeds. Our choice."""

INTERVALS = (1, 2, 3, 4, 5)
"""FORA's intervals among the seeds. Our choice."""

CHECKPOINT, ABOUT, LOG = "search.safetensors", "search.json", "log.jsonl"
"""The files of a search in its folder."""

logger = logging.getLogger("diffcache")


@dataclass(frozen=True)
class Budget:
    """When a search ends: after the first generation that reaches one of these bounds. None: no bound.

    Attributes:
        generations: the seeds count as one.
        candidates: tables that were rendered, seeds included.
        minutes: of this process. A resumed search has as many again, and where it ends depends on the machine.

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
        """Whether a search is over that has run for so long in this process."""
        return (
            (self.generations is not None and search.generation >= self.generations)
            or (self.candidates is not None and len(search.tables) >= self.candidates)
            or (self.minutes is not None and minutes >= self.minutes)
        )


@dataclass(frozen=True)
class EvolutionSettings:
    """How tables evolve.

    Attributes:
        population: how many survive a generation.
        children: how many are rendered in a generation. The error model is fitted again after each generation, so few are best;
            with several processes, give at least one for each.
        screened: an error model chooses which children to render; False: all that are bred are rendered.
        seed: of all random numbers. With a deterministic pipeline the result is reproducible to the bit.
    """

    population: int = 24
    children: int = 2
    screened: bool = True
    seed: int = 0


def seeds(space: Space) -> Tensor:
    """The first generation of a search, bool [n, T, S].

    It has FORA's intervals, T-GATE's table if there is cross-attention, and for some shares of the compute the table of each
    variant of dynamic programming.
    """
    ticks, sites = space.num_ticks, len(space.sites)
    tables = [every(ticks, sites, interval) for interval in INTERVALS if interval <= ticks]
    if "cross-attention" in space.kinds:
        tables.append(tgate(ticks, space.kinds, gate=ticks // 2, interval=2))
    least = float(space.compute(every(ticks, sites, ticks)))
    tables += [
        table_of(space, space.budget(share))
        for share in SHARES
        if share > least
        for table_of in VARIANTS.values()
    ]
    return torch.stack(tables)


def evolve(
    scorer: Scorer,
    folder: Path,
    budget: Budget,
    settings: EvolutionSettings = EvolutionSettings(),
    *,
    begin: Tensor | None = None,
) -> Evolution:
    """Searches the Pareto front of loss and cost (NSGA-II, after ECAD, arXiv 2506.15682), and saves it after each generation.

    If the folder holds a search of the same space, calls and settings, that search is continued as if it had never stopped. Under
    `accelerate launch` each process renders its part of the calls; the result is that of one process.

    Args:
        scorer: renders candidates, and measures their loss and cost.
        folder: for `search.safetensors` (the checkpoint), `search.json` (what is searched), and `log.jsonl`.
        budget: when the search ends.
        settings: how tables evolve.
        begin: tables, bool [n, T, S], that a new search starts with besides its `seeds`. On these calls its front is then
            nowhere worse than they are.

    Returns:
        The search. Its `front` has the best tables, which `write_front` saves as schedules.

    Raises:
        ScheduleError: the folder holds another search.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if is_first():
        claim(folder / ABOUT, _about(scorer, settings, begin))
    checkpoint = folder / CHECKPOINT
    if broadcast(checkpoint.exists()):
        search = Evolution.load(checkpoint)
        logger.info("%s: continuing after generation %d", folder, search.generation)
    else:
        first = seeds(scorer.space) if begin is None else torch.cat([begin, seeds(scorer.space)])
        search = Evolution(
            first, population=settings.population, children=settings.children, seed=settings.seed
        )
    wait()
    screen = Screening(ErrorModel(scorer.space.drifts, scorer.space.prices)) if settings.screened else None
    for _ in _within(budget, search, scorer, screen):
        if is_first():
            search.save(checkpoint)
            _log(folder / LOG, search)
    return search


def _about(scorer: Scorer, settings: EvolutionSettings, begin: Tensor | None) -> dict[str, object]:
    """What tells this search from others."""
    return {
        **scorer.space.about,
        **digests_of(scorer.pipe),
        "calls": calls_hash(scorer.calls),
        **asdict(settings),
        "loss": _name(scorer.loss),
        "cost": "compute" if scorer.cost is None else _name(scorer.cost),
        "begin": None if begin is None else calls_hash([{"tables": begin}]),
    }


def _within(
    budget: Budget, search: Evolution, evaluate: Evaluate, screen: Screening | None
) -> Iterator[Evolution]:
    """The generations of a search until its budget is spent."""
    start = time.monotonic()
    generations = search.generations(evaluate, screen)
    while not broadcast(budget.spent(search, (time.monotonic() - start) / 60)) and next(generations, None):
        yield search


def _name(function: Callable[..., float]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _log(path: Path, search: Evolution) -> None:
    """Adds a line for the newest generation."""
    front = search.front.scores.tolist()
    log_line(path, {"generation": search.generation, "candidates": len(search.tables), "front": front})
    best = ", ".join(f"{loss:.1f} at {cost:.0%}" for loss, cost in front)
    logger.info("generation %d, %d candidates: %s", search.generation, len(search.tables), best)
