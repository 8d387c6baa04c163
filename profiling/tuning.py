"""tune: finds how little may be computed for a quality, or how to place what a speed-up leaves, on the user's prompts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from diffcache import report
from diffcache.profiling.full_runs import FullRuns
from diffcache.profiling.pictures import rewound
from diffcache.profiling.record import Call, accelerated, calls_hash
from diffcache.recipes.budget import BudgetConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.schedule import Schedule

ORDERS = (1, 2, 0)


def tune(
    pipe: Any,
    prompts: Sequence[str | Call],
    *,
    quality: float | None = None,
    speedup: float | None = None,
    **call: Any,
) -> Schedule:
    """Finds a schedule on some prompts and verifies it on others.

    Every second prompt is kept apart for verification. Candidates compute so many ticks, evenly spread, and extrapolate
    with order 0, 1 or 2; the number of ticks is found by bisection.

    Args:
        pipe: a pipeline; it is plain afterwards.
        prompts: at least two: texts, or whole calls as keyword arguments (for pipelines without a prompt).
        quality: median PSNR in dB to the full run that must be kept, on both halves of the prompts.
        speedup: or ticks of a run over computed ticks.
        **call: what every call is given besides (`num_inference_steps`, `height`, ...). Prompt i is drawn with seed i.

    Returns:
        A schedule; `measured` holds its compute fraction and the PSNR on both halves.

    Raises:
        ConfigError: not exactly one aim, fewer than two prompts, or a quality that not even every other tick's reuse
            keeps.
    """
    if (quality is None) == (speedup is None) or len(prompts) < 2:
        raise ConfigError("tune() needs at least two prompts, and either quality= or speedup=.")
    calls = [_call(prompt, seed, call) for seed, prompt in enumerate(prompts)]
    trial = _Trial(pipe, calls[::2])
    if speedup is not None:
        best = trial.best_order(speedup)
    else:
        assert quality is not None
        best = trial.fewest(quality)
    held_out = _Trial(pipe, calls[1::2])
    schedule = trial.schedule(best)
    while quality is not None and held_out.psnr(ReplayConfig(schedule=schedule)) < quality:
        best = trial.one_more(best)
        schedule = trial.schedule(best)
    measured = {
        "compute_fraction": schedule.measured["compute_fraction"],
        "psnr": round(trial.psnr(ReplayConfig(schedule=schedule)), 2),
        "psnr_held_out": round(held_out.psnr(ReplayConfig(schedule=schedule)), 2),
    }
    aim = {"quality": quality} if speedup is None else {"speedup": speedup}
    return replace(
        schedule, measured=measured, producer={"method": "tune", **aim, "prompts": calls_hash(calls)}
    )


class _Trial(FullRuns):
    """Candidates, held against the full runs of some calls."""

    def __init__(self, pipe: Any, calls: Sequence[Call]) -> None:
        super().__init__(pipe, calls)
        self.ticks = self._ticks()

    def best_order(self, speedup: float) -> BudgetConfig:
        return max((BudgetConfig(speedup=speedup, order=order) for order in ORDERS), key=self.psnr)

    def fewest(self, quality: float) -> BudgetConfig:
        """The fewest ticks that keep a quality, by bisection."""
        low, high = 2, self.ticks - 1
        best = self._with(high)
        if self.psnr(best) < quality:
            raise ConfigError(f"no reuse keeps {quality} dB here: run the pipeline as it is.")
        while low < high:
            middle = (low + high) // 2
            config = self._with(middle)
            if self.psnr(config) >= quality:
                best, high = config, middle
            else:
                low = middle + 1
        return best

    def one_more(self, config: BudgetConfig) -> BudgetConfig:
        """A tick more than a candidate computes."""
        ticks = int(self.ticks / config.speedup + 1e-9) + 1
        if ticks >= self.ticks:
            raise ConfigError(
                "no reuse keeps this quality on the prompts kept apart: run the pipeline as it is."
            )
        return self._with(ticks)

    def schedule(self, config: BudgetConfig) -> Schedule:
        """A candidate, frozen."""
        with accelerated(self.pipe, config):
            self.pipe(**rewound(self.calls[0]))
            schedule: Schedule = report(self.pipe).to_schedule()
            return schedule

    def _with(self, ticks: int) -> BudgetConfig:
        return self.best_order(self.ticks / ticks)

    def _ticks(self) -> int:
        with accelerated(self.pipe, BudgetConfig(speedup=1)):
            self.pipe(**rewound(self.calls[0]))
            ticks: int = report(self.pipe).num_ticks
            return ticks


def _call(prompt: str | Call, seed: int, call: Call) -> Call:
    given = {"prompt": prompt} if isinstance(prompt, str) else prompt
    return {"generator": torch.Generator().manual_seed(seed), **call, **given}
