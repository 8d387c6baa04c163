"""What a run of a pipeline knows before its first tick."""

from typing import Any
from unittest.mock import patch

from diffcache.config import RunFacts
from diffcache.evals.harness.rendering import render
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.schedulers.base import CacheScheduler


def run_facts(pipe: Any, call: dict[str, Any]) -> RunFacts:
    """The facts that methods plan with, of a run that is made for it; with what its first tick shows of guidance.

    Args:
        pipe: a plain pipeline.
        call: its keyword arguments.
    """
    seen, original = list[RunFacts](), TrajectoryConfig.scheduler

    def noted(config: TrajectoryConfig, run: RunFacts) -> CacheScheduler:
        seen.append(run)
        return original(config, run)

    with patch.object(TrajectoryConfig, "scheduler", noted):
        render(pipe, call, TrajectoryConfig(speedup=2))
    return seen[-1]
