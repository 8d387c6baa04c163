"""Searched schedules for the sub-layers of a robot policy, each beside as many even ticks, which are interpolated to its compute."""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffcache.api import accelerate, report, restore
from diffcache.config import CacheConfig
from diffcache.evals.harness.equal_compute import Point, interpolated
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds.diffusion_policy import PolicyTransformer
from diffcache.evals.testbeds.policy_loop import policy_calls, policy_loop
from diffcache.evals.testbeds.reaching_task import success_rate
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.recording.pictures import median_of
from diffcache.profiling.recording.record import record
from diffcache.profiling.searching.dynamic_programming import bac_table, cosine_bac, dynamic_programming
from diffcache.profiling.searching.polishing import even
from diffcache.profiling.searching.probing import probed
from diffcache.profiling.searching.space import Space
from diffcache.recipes.replay import ReplayConfig

STEPS = 40
SHARES = (0.25, 0.15)
"""Of the work, at most, save for BAC as published."""

PUBLISHED = 5
"""Feed-forwards that BAC's Bubbling Union repairs, as published for simulations; it then computes more than the share."""

REPAIRED = (0, 1, 2)
"""Further numbers that are tried where the share is to be kept."""

SEARCHING, CHOOSING, SCORING = 0, 3, 1
"""Seeds of the observations that searches see, that the number of repaired feed-forwards is chosen on, and that score."""
ACTING = 2
"""Seed of the episodes."""


ROUNDED = 1e-4
"""Shares of the work are rounded to this."""


class Outcome(NamedTuple):
    """The share of the work, PSNR in dB of the actions to the full run's, and the share of episodes that reach the goal."""

    compute: float
    psnr: float
    goal: float


class PolicySearch:
    """The searches and what they are measured with.

    Args:
        samples: observations in each part.
        episodes: in which the goal is to be reached.
    """

    def __init__(self, samples: int, episodes: int) -> None:
        self.net = PolicyTransformer.load()
        self.episodes = episodes
        loop = policy_loop(self.net)
        searched, choosing, scoring = (
            policy_calls(seed, samples, STEPS) for seed in (SEARCHING, CHOOSING, SCORING)
        )
        self.choosing, self.scoring = FullRuns(loop, choosing), FullRuns(loop, scoring)
        self.cosine = Space(record(loop, searched, sites="sub-layer", metric="cosine"))
        self.space = Space(record(loop, searched, sites="sub-layer"))
        self.response = probed(loop, searched, self.space, each_site=False)
        self.even = cache(lambda ticks: self.outcome(self._replayed(even(self.space, ticks))))

    def rows(self) -> Iterator[dict[str, Any]]:
        """One for each schedule, with even ticks at the same compute."""
        full = success_rate(self.net, self.episodes, STEPS, seed=ACTING)
        yield {"name": "full run", "share": 1.0, **Outcome(1.0, 100.0, round(full, 4))._asdict()}
        for share in SHARES:
            for name, config in self.candidates(share).items():
                own = self.outcome(config)
                yield {"name": name, "share": share, **own._asdict(), **self.control(own.compute)}

    def candidates(self, share: float) -> dict[str, CacheConfig]:
        """Schedules by name."""
        published = bac_table(self.cosine, round(share * STEPS), PUBLISHED)
        tried = [self._replayed(cosine_bac(self.cosine, share, n)) for n in (*REPAIRED, PUBLISHED)]
        return {
            "BAC as published": self._replayed(published),
            "BAC within the share": max(tried, key=self.choosing.psnr),
            "shared, by drift": ReplayConfig(schedule=dynamic_programming(self.space, share)),
            "shared, by response": ReplayConfig(schedule=dynamic_programming(self.response, share)),
        }

    def outcome(self, config: CacheConfig) -> Outcome:
        """What a method computes and gives."""
        near = median_of(psnr(self.scoring.cached(config), self.scoring.pictures))
        accelerate(self.net, config)
        goal = success_rate(self.net, self.episodes, STEPS, seed=ACTING)
        compute = report(self.net).compute_fraction
        restore(self.net)
        return Outcome(round(compute, 4), round(near, 2), round(goal, 4))

    def control(self, compute: float) -> dict[str, float]:
        """What even ticks give at a compute, from the largest number of them that computes no more, and the next."""
        tables = torch.stack([even(self.space, ticks) for ticks in range(1, STEPS)])
        ticks = int((self.space.compute(tables) <= compute + ROUNDED).sum())
        around = (self.even(ticks), self.even(ticks + 1))
        return {
            f"even_{name}": round(
                interpolated([Point(o.compute, getattr(o, name)) for o in around], compute), 4
            )
            for name in ("psnr", "goal")
        }

    def _replayed(self, table: Tensor) -> CacheConfig:
        return ReplayConfig(schedule=self.space.schedule(table, {}))


def measured(samples: int, episodes: int) -> dict[str, Any]:
    """All rows."""
    rows = []
    for row in PolicySearch(samples, episodes).rows():
        rows.append(row)
        print("policy", row, flush=True)
    return {"steps": STEPS, "episodes": episodes, "rows": rows}
