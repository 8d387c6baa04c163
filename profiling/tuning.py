"""tune: finds how little may be computed for a quality, or how to place what a speed-up leaves, on the user's prompts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from diffcache.profiling.calling import Call, calls_hash, frozen
from diffcache.profiling.full_runs import FullRuns
from diffcache.recipes.budget import BudgetConfig, allowed, spread
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.schedule import ALL, Schedule

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

    Every second prompt is kept apart. Candidates compute so many ticks, evenly spread, and extrapolate with order 0, 1 or 2.
    On the one half the order is chosen, and the number of ticks where the search begins; on the other half it ends, at the
    fewest ticks that keep the quality there.

    Args:
        pipe: a pipeline; it is plain afterwards.
        prompts: at least two: texts, or whole calls as keyword arguments (for pipelines without a prompt).
        quality: median PSNR in dB to the full run that must be kept on the prompts that were kept apart.
        speedup: or ticks of a run over computed ticks.
        **call: what every call is given besides (`num_inference_steps`, `height`, ...). Prompt i is drawn with seed i.

    Returns:
        A schedule; `measured` holds its compute fraction and the PSNR on both halves.

    Raises:
        ConfigError: not exactly one aim, fewer than two prompts, or a quality that no reuse keeps.
    """
    if (quality is None) == (speedup is None) or len(prompts) < 2:
        raise ConfigError("tune() needs at least two prompts, and either quality= or speedup=.")
    tuner = Tuner(pipe, [_call(prompt, seed, call) for seed, prompt in enumerate(prompts)])
    if speedup is not None:
        return tuner.for_speedup(speedup)
    assert quality is not None
    return tuner.for_quality(quality)


class Tuner:
    """Aims at one pipeline and its prompts; what has been rendered for one aim is known to the next.

    Args:
        pipe: a pipeline; it is plain afterwards.
        calls: every second one is kept apart.
    """

    def __init__(self, pipe: Any, calls: Sequence[Call]) -> None:
        self.calls = calls
        self.seen, self.apart = FullRuns(pipe, calls[::2]), FullRuns(pipe, calls[1::2])
        self.full = frozen(pipe, calls[0], BudgetConfig(speedup=1))
        self.ticks = self.full.num_ticks
        self._reached: dict[tuple[bool, int, int], float] = {}

    def for_speedup(self, speedup: float) -> Schedule:
        """The best order for as many ticks as a speed-up allows."""
        count = allowed(self.ticks, speedup)
        return self._measured(count, self._best_order(count), {"speedup": speedup})

    def for_quality(self, quality: float) -> Schedule:
        """The fewest ticks that keep a quality.

        Raises:
            ConfigError: not even all ticks but one do.
        """
        order = self._best_order(self.ticks // 2)
        low, high = 2, self.ticks - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.psnr(middle, order) >= quality else (middle + 1, high)
        count, order = low, self._best_order(low)
        while self.psnr(count, order, apart=True) < quality:
            count += 1
            if count >= self.ticks:
                raise ConfigError(f"no reuse keeps {quality} dB here: run the pipeline as it is.")
        while count > 2 and self.psnr(count - 1, order, apart=True) >= quality:
            count -= 1
        return self._measured(count, order, {"quality": quality})

    def psnr(self, count: int, order: int, *, apart: bool = False) -> float:
        """Median over the prompts of one half, in dB."""
        key = apart, count, order
        if key not in self._reached:
            runs = self.apart if apart else self.seen
            self._reached[key] = runs.psnr(ReplayConfig(schedule=self.schedule(count, order)))
        return self._reached[key]

    def schedule(self, count: int, order: int) -> Schedule:
        """So many ticks, evenly spread after the warm-up of `speedup=`, extrapolated with this order."""
        computed = set(spread(self.ticks, count, 3 if count >= 16 else 1))
        marks = "".join("#" if tick in computed else "-" for tick in range(self.ticks))
        predictor = {"name": "polynomial", "order": order, "axis": "sigma", "basis": "output"}
        return replace(
            self.full, table={site: {ALL: marks} for site in self.full.models}, predictor=predictor
        )

    def _best_order(self, count: int) -> int:
        return max(ORDERS, key=lambda order: self.psnr(count, order))

    def _measured(self, count: int, order: int, aim: dict[str, float]) -> Schedule:
        """A candidate with what it costs and gives."""
        schedule = self.schedule(count, order)
        run = frozen(self.seen.pipe, self.calls[0], ReplayConfig(schedule=schedule))
        measured = {
            "compute_fraction": run.measured["compute_fraction"],
            "psnr": round(self.psnr(count, order), 2),
            "psnr_held_out": round(self.psnr(count, order, apart=True), 2),
        }
        producer = {"method": "tune", **aim, "prompts": calls_hash(self.calls)}
        return replace(schedule, measured=measured, producer=producer)


def _call(prompt: str | Call, seed: int, call: Call) -> Call:
    given = {"prompt": prompt} if isinstance(prompt, str) else prompt
    return {"generator": torch.Generator().manual_seed(seed), **call, **given}
