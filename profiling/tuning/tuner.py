"""The tuner: judges what an engine proposes, keeps the best, and verifies it once."""

import logging
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor

from diffcache.config import CacheConfig
from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.frozen import frozen
from diffcache.profiling.recording.full_runs import FullRuns, Measure
from diffcache.profiling.recording.journal import key_of
from diffcache.profiling.recording.pictures import median_of, psnr
from diffcache.profiling.recording.processes import is_first
from diffcache.profiling.recording.shares import SLACK, TooLittle
from diffcache.profiling.searching.confirming import is_better
from diffcache.profiling.tuning.aim import Aim
from diffcache.profiling.tuning.engine import Task, TuningEngine
from diffcache.profiling.tuning.engines import ENGINES
from diffcache.profiling.tuning.judged import Judged, the_best_of
from diffcache.profiling.tuning.parts import Parts
from diffcache.profiling.tuning.plain_steps import EVEN, FEWER, STEPS, steps_for
from diffcache.profiling.tuning.promises import CONFIDENCE, fewest, least_share, needed, reached
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.schedule import EXPECTED_ERROR

logger = logging.getLogger("diffcache")

DIGITS = 4
"""Of the figures in an artifact."""

NO_PICTURES = "no proposal gave pictures of finite numbers: run one with a cache, and look for overflows."
"""Why nothing is found."""

TRIES = 8
"""So often a method that decides in the run is calibrated anew, each time for a quarter of a tick less, if it computes too much. Our choice."""


class Tuner:
    """Finds methods for several aims on one pipeline. Each search reuses what the earlier ones rendered.

    Args:
        task: the pipeline, and what the engine fits on.
        parts: the calls. `verify` may be empty.
        engine: its name.
        measure: what quality is; PSNR in dB where nothing is said.

    Attributes:
        ticks: length of a run.
        best: the best so far that meets the aim; None before there is one.
    """

    def __init__(self, task: Task, parts: Parts, engine: str = "trajectory", measure: Measure = psnr) -> None:
        self.task, self.parts, self.measure = task, parts, measure
        self.ticks = task.ticks
        self.engine: TuningEngine = ENGINES[engine](task)
        self.best: Judged | None = None
        self._known: dict[str, Judged] = {}

    @cached_property
    def choosing(self) -> FullRuns:
        """The full runs of the calls to choose on."""
        return FullRuns(self.task.pipe, self.parts.choose, self.measure)

    def for_compute(self, compute: float) -> Judged:
        """The best proposal for a share of the work (see `best_ranked`).

        Raises:
            TooLittle: the engine has none.
        """
        find = self._deciding_in_the_run if self.engine.adaptive else self._scheduled
        try:
            return find(compute)
        except TooLittle as error:
            less = "less" if error.least is None else f"at most {math.floor(100 / error.least) / 100:g}"
            raise TooLittle(
                f"speedup={1 / compute:g} is more than the engine {self.engine.name()} can do in {self.ticks} steps: ask for {less}, take "
                "more steps, or choose another engine.",
                error.least,
            ) from error

    def for_quality(self, quality: float, at_least: float) -> Judged:
        """The proposal that computes fewest ticks and keeps a quality on so many of the samples to choose on.

        As many must keep it as show, with confidence, that the share of all samples is large enough; if there are too few
        samples to show that, all of them.

        Args:
            quality: the least that a sample may measure.
            at_least: share of samples that must keep it.

        Raises:
            ConfigError: no reuse keeps it.
        """
        counts = range(1, self.ticks)
        _ = self.choosing  # rendered now, so that a pipeline that does not repeat itself is refused here, and not taken for too little below
        found: dict[int, Judged] = {}

        def kept(count: int) -> bool:
            best = self._keeping(count, quality, at_least)
            if best is not None:
                self.best = found[count] = best
            return best is not None

        fewest_ticks = bisect_left(counts, True, key=kept)
        if fewest_ticks == len(counts):
            raise ConfigError(
                f"no reuse keeps {quality:g} on {at_least:.0%} of the samples: ask for less, or run it as it is."
            )
        return found[counts[fewest_ticks]]

    def judge(self, config: CacheConfig) -> Judged:
        """A proposal on the calls to choose on. Each is rendered once."""
        key = key_of("judged", config=config)
        if key not in self._known:
            if self.engine.adaptive:
                values = self.choosing.measures(config)
                schedule = frozen(self.task.pipe, self.parts.choose[0], config)
            else:
                schedule, values = self.choosing.decided(config)
                if isinstance(config, ReplayConfig):
                    config = replace(config, schedule=replace(config.schedule, measured=schedule.measured))
                else:
                    config = ReplayConfig(schedule=schedule)
            self._known[key] = Judged(config, schedule.measured["compute_fraction"], values)
        return self._known[key]

    def verified(self, best: Judged, aim: Aim, calls: list[Call]) -> dict[str, Any]:
        """What the artifact says of it: what it measures on each part, and what that promises.

        Args:
            best: the proposal that was chosen.
            aim: what it was chosen for.
            calls: to verify it on; may be empty.
        """
        figures: dict[str, Any] = {
            "compute_fraction": best.compute,
            "choose": _figures(best.values),
            "fit": {"calls": len(self.parts.fit)},
        }
        if isinstance(best.config, ReplayConfig) and best.config.schedule.expected_error is not None:
            figures[EXPECTED_ERROR] = best.config.schedule.expected_error
        if not calls:
            return figures
        runs = FullRuns(self.task.pipe, calls, self.measure)
        values = runs.measures(best.config)
        lost = int((~values.isfinite()).sum())
        if lost and is_first():
            logger.warning(
                "%d of %d samples to verify on have no pictures of finite numbers: look for overflows.",
                lost,
                len(values),
            )
        figures["verify"] = {
            **_figures(values),
            "confidence": CONFIDENCE,
            f"{aim.share_of_samples:.0%} reach": _rounded(reached(values, aim.share_of_samples)),
        }
        if aim.quality is not None:
            count, of = int((values >= aim.quality).sum()), len(values)
            promised = least_share(count, of)
            figures["verify"] |= {
                "kept": count,
                "least share that keeps it": _rounded(promised),
                "holds": promised >= aim.share_of_samples,
                "samples that could show it": fewest(aim.share_of_samples),
            }
        if 1 / self.ticks <= best.compute < 1:
            even = EvenConfig(speedup=1 / best.compute)
            figures["verify"][EVEN] = _figures(runs.measures(even))
        steps = steps_for(self.task.pipe, calls[0], best.compute)
        if steps is not None:
            figures["verify"][FEWER] = {STEPS: steps, **_figures(runs.with_steps(steps))}
        return figures

    def _scheduled(self, compute: float) -> Judged:
        """The best schedule for a share of the work.

        Raises:
            TooLittle: the engine has none.
            ConfigError: none gave pictures of finite numbers.
        """
        best, found = None, list[Judged]()
        for config in self.engine.propose(compute):
            one = self.judge(config)
            if one.compute > compute + SLACK:
                continue  # its second denoiser computes its first call besides
            found.append(one)
            finite = [each for each in found if each.is_finite]
            if finite:
                best = self.best = self._best_of(finite)
        if not found:
            raise TooLittle(f"all that was proposed computes more than {compute:.0%} of the work.")
        if best is None:
            raise ConfigError(NO_PICTURES)
        corrected = self._corrected(best)
        # It was fitted for this one schedule, so it is no choice among many: the mean decides.
        if corrected is not None and corrected.mean > best.mean:
            best = self.best = corrected
        return best

    def _corrected(self, best: Judged) -> Judged | None:
        """A schedule with the engine's correction, which computes as much; None where it has none, or no other call shows whether it helps."""
        if not isinstance(best.config, ReplayConfig) or self.parts.are_one:
            return None
        schedule = self.engine.corrected(best.config.schedule)
        return None if schedule is None else self.judge(replace(best.config, schedule=schedule))

    def _deciding_in_the_run(self, compute: float) -> Judged:
        """A method that computes a share of the work on the calls to choose on; if none is found, the one that computes least there.

        Its threshold was calibrated on the calls to fit on. If it computes more here, it is calibrated for a little less.

        Raises:
            TooLittle: no threshold suffices on the calls to fit on.
            ConfigError: it gave no pictures of finite numbers.
        """
        (config,) = self.engine.propose(compute)
        self.best = best = self.judge(config)
        for again in range(1, TRIES + 1):
            less = compute - again / (4 * self.ticks)
            if best.compute <= compute + SLACK or less <= 0:
                break
            try:
                (config,) = self.engine.propose(less)
            except TooLittle:
                break
            self.best = best = min(best, self.judge(config), key=lambda one: one.compute)
        if not best.is_finite:
            raise ConfigError(NO_PICTURES)
        return best

    def _keeping(self, count: int, quality: float, at_least: float) -> Judged | None:
        """The best proposal with so many ticks that keeps a quality; None if there is none."""
        try:
            proposals = [self.judge(config) for config in self.engine.propose(count / self.ticks)]
        except TooLittle:
            return None
        if proposals:
            corrected = self._corrected(the_best_of(proposals))
            if corrected is not None:
                proposals.append(corrected)
        keeping = [
            one
            for one in proposals
            if int((one.values >= quality).sum()) >= needed(len(one.values), at_least)
        ]
        return the_best_of(keeping) if keeping else None

    def _best_of(self, found: Sequence[Judged]) -> Judged:
        """The best of what was judged so far. Where the engine confirms, each replaces the one before it only if it is better by more than chance."""
        if not self.engine.confirms:
            return the_best_of(found)
        best, *others = found
        for one in others:
            best = one if is_better(one.values - best.values) else best
        return best


def _figures(values: Tensor) -> dict[str, Any]:
    return {
        "samples": len(values),
        "median": _rounded(median_of(values)),
        "mean": _rounded(float(values.mean())),
        "worst": _rounded(float(values.min())),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
