"""Engines that search tables: dynamic programming, BAC, evolution, and a trained router."""

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from diffcache.config import CacheConfig
from diffcache.profiling.recording.journal import Spent, journal
from diffcache.profiling.recording.processes import broadcast
from diffcache.profiling.recording.record import recorded
from diffcache.profiling.recording.recorder import Metric
from diffcache.profiling.searching.dynamic_programming import VARIANTS, cosine_bac, dynamic_programming
from diffcache.profiling.searching.evolving import CHECKPOINT, Budget, EvolutionSettings, evolve, seeds
from diffcache.profiling.searching.fronts import best_within
from diffcache.profiling.searching.probing import probed
from diffcache.profiling.searching.routing import routed, train_router
from diffcache.profiling.searching.scoring import Scorer
from diffcache.profiling.searching.space import EXTRAPOLATE, HOLD, Space
from diffcache.profiling.tuning.engine import TuningEngine, engine
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.search.evolution import Evolution
from diffcache.schedulers.search.harmonica import Training
from diffcache.schedulers.steps import MODEL

REPAIRED = (0, 1, 2, 5)
"""How many feed-forwards BAC's Bubbling Union repairs. Published: 3 and 5."""

CANDIDATES = 60
"""Tables that evolution renders where no minutes are given. Our choice."""

SHARES = (0.34, 0.5)
"""Of the work, at which evolution starts with the schedules of dynamic programming."""

FINALISTS = 4
"""Of evolution's best tables for a share, how many are judged on samples that it has not seen."""

RUNS = 24
"""Of a router's training. Published trainings have thousands. Our choice."""


@engine("dp")
class DynamicProgramming(TuningEngine):
    """Schedules of least error by how much the pictures move when single ticks and single sites are reused.

    Whole denoisers are extrapolated with hindsight, sites inside are held.
    """

    inner = True
    proposals = len(VARIANTS)

    @cached_property
    def recorded_space(self) -> Space:
        """The space without probes."""
        predictor = {**EXTRAPOLATE, "hindsight": True} if self.sites == MODEL else HOLD
        metric: Metric = "l1" if self.sites == MODEL else "l2"
        recording = recorded(
            self.task.pipe, self.task.calls, sites=self.sites, basis=predictor["basis"], metric=metric
        )
        return Space(recording, predictor)

    @cached_property
    def space(self) -> Space:
        """The space with its response to the probes."""
        each = self.sites != MODEL
        return broadcast(probed(self.task.pipe, self.task.calls, self.recorded_space, each_site=each))

    def planned(self, compute: float) -> list[Tensor]:
        """Tables, bool [T, S], of each variant; they agree where the only site is the whole denoiser."""
        variants = ["shared"] if self.sites == MODEL else list(VARIANTS)
        found = [dynamic_programming(self.space, compute, variant) for variant in variants]
        return [schedule.decisions[:, 0] for schedule in found]

    def propose(self, compute: float) -> Iterator[CacheConfig]:
        for table in self.planned(compute):
            yield self.config(table)

    def config(self, table: Tensor) -> CacheConfig:
        """The replay of a table."""
        return ReplayConfig(schedule=self.space.schedule(table, {}))

    def fit_renders(self) -> int:
        inner = self.sites != MODEL
        probes = self.task.ticks - 1 + (len(self.recorded_space.sites) if inner else 0)
        return (2 + probes) * len(self.task.calls)


@engine("bac")
class BAC(TuningEngine):
    """Block-wise adaptive caching (arXiv 2506.13456): by cosines, with the Bubbling Union for several numbers of feed-forwards.

    Each has as many updates as fit into the share together with what the union adds.
    """

    whole, inner = False, True
    proposals = len(REPAIRED)

    @cached_property
    def space(self) -> Space:
        return Space(recorded(self.task.pipe, self.task.calls, sites=self.sites, metric="cosine"), HOLD)

    def propose(self, compute: float) -> Iterator[CacheConfig]:
        tables = [cosine_bac(self.space, compute, repaired) for repaired in REPAIRED]
        for table in tables:
            yield ReplayConfig(schedule=self.space.schedule(table, {}))

    def fit_renders(self) -> int:
        return len(self.task.calls)


@engine("evolution")
class EvolutionEngine(DynamicProgramming):
    """Dynamic programming's schedules, and those of an evolution that starts with them and is better on most unseen samples."""

    fitted = 8
    confirms = True
    proposals = len(VARIANTS) + FINALISTS

    @cached_property
    def search(self) -> Evolution:
        folder = self.task.checkpoints("evolution")
        budget = Budget(candidates=CANDIDATES)
        least = max(float(self.space.compute(self.space.together([0]))), 0.0)
        begin = [table for share in SHARES if share > least for table in self.planned(share)]
        scorer = Scorer(self.task.pipe, self.task.calls, self.space)
        try:
            return evolve(
                scorer,
                folder,
                budget,
                EvolutionSettings(seed=self.task.seed),
                begin=torch.stack(begin) if begin else None,
            )
        except Spent:
            journal().stop_clock()
            if not (folder / CHECKPOINT).exists():
                raise
            return Evolution.load(folder / CHECKPOINT)

    def propose(self, compute: float) -> Iterator[CacheConfig]:
        yield from super().propose(compute)
        for table in best_within(self.search, compute, FINALISTS):
            yield self.config(table)

    def fit_renders(self) -> int:
        return super().fit_renders() + max(CANDIDATES, len(seeds(self.recorded_space))) * len(self.task.calls)


@engine("router")
class RouterEngine(TuningEngine):
    """A router (HarmoniCa, arXiv 2410.01723) for each attention and feed-forward, trained from an even schedule."""

    whole, inner = False, True
    proposals = 2

    @cached_property
    def space(self) -> Space:
        return Space(recorded(self.task.pipe, self.task.calls, sites=self.sites, metric="l2"), HOLD)

    def propose(self, compute: float) -> Iterator[CacheConfig]:
        begin = dynamic_programming(self.space, compute)
        yield ReplayConfig(schedule=begin)
        folder = self.task.checkpoints(f"router-{compute:.3f}")
        training = Training(target=compute, runs=RUNS, lr=0.2, seed=self.task.seed)
        router = train_router(
            self.task.pipe, self.task.calls, self.space, folder, training, begin=begin.decisions[:, 0]
        )
        yield ReplayConfig(schedule=routed(router, self.space, compute))

    def fit_renders(self) -> int:
        # a recording, the proxy of the image error, and the runs, of teacher and student with a backward pass
        return (1 + self.task.ticks + 3 * RUNS) * len(self.task.calls)
