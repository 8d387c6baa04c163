"""The method `trajectory` on each testbed: with a prior that has never seen it, and with its own covariance."""

from collections.abc import Iterator, Mapping
from typing import Any

from diffcache.config import CacheConfig
from diffcache.evals.experiments.trajectory_prior import SAMPLES
from diffcache.evals.harness.calls import call_of
from diffcache.evals.harness.cell import Cell, Nearness
from diffcache.evals.harness.unseen import judged_on
from diffcache.evals.testbeds import splits, zoo
from diffcache.profiling.recording.frozen import frozen
from diffcache.profiling.searching.ranking import best_ranked
from diffcache.profiling.tuning.engine import Task
from diffcache.profiling.tuning.planned import TrajectoryEngine
from diffcache.recipes.budgeted import allowed
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.trajectory import TrajectoryConfig

TRIED = 8
"""Samples on which proposals are chosen; their seeds are not those of the samples that are fitted on."""

SPEEDUPS = (1.5, 2.0, 3.0, 4.0)
THRESHOLDS = (0.02, 0.05, 0.1)


def pictures(
    testbed: str,
    steps: int,
    samples: int,
    use: splits.Use,
    guidance: float | None = None,
    pipe: Any | None = None,
) -> Cell:
    """What a testbed draws of some samples, in full; with its own pipeline and scale of guidance where none is given."""

    def call(count: int) -> dict[str, Any]:
        asked = call_of(testbed, use, count, samples)
        return asked if guidance is None else zoo.guided(testbed, asked, guidance)

    return Cell(pipe or zoo.load(testbed), call, steps)


def evens(speedup: float) -> dict[str, CacheConfig]:
    """Evenly spaced ticks, of both orders."""
    return {"even": EvenConfig(speedup=speedup), "even, order 2": EvenConfig(speedup=speedup, order=2)}


def figures(found: Mapping[str, Nearness]) -> dict[str, Any]:
    """What a row has of its contenders: the median PSNR of each in dB, and under "samples" each sample's."""
    samples = {name: one.psnr.double().round(decimals=2).tolist() for name, one in found.items()}
    return {**{name: one.median for name, one in found.items()}, "samples": samples}


def compared(testbed: str, steps: int, samples: int) -> Iterator[dict[str, Any]]:
    """For each speed-up the PSNR in dB to the full run, by contender; all compute as many ticks.

    "planned" is "tuned" without the correction of its last step. "own" has the covariance and the response that were measured on other prompts and seeds, and "seen" those of the very samples that are
    scored, which nobody has beforehand. "tuned" is the proposal that is best on a third part, as `diffcache.tune` chooses it. Of it and "prior"
    the expected and the measured error are given: "tuned" expects what it measured where it was chosen. Medians are given, and under "samples"
    each sample's, which are paired.
    """
    shown = pictures(testbed, steps, samples, "choose")
    fitted = pictures(testbed, steps, SAMPLES, "covariance")
    tried = pictures(testbed, steps, TRIED, "search")
    engine = engine_on(fitted)
    known = {"own": engine, "seen": engine_on(shown)}
    for speedup in SPEEDUPS:
        ticks = allowed(steps, speedup)
        with judged_on(testbed):
            contenders: dict[str, CacheConfig] = {
                **evens(speedup),
                "prior": TrajectoryConfig(speedup=speedup),
                **{name: _planned(measured, speedup) for name, measured in known.items()},
            }
            on_tried = [(config, tried.method(config)) for config in engine.propose(ticks / steps)]
            best = on_tried[best_ranked([found.psnr for _, found in on_tried])]
            on_tried = [best, *((config, tried.method(config)) for config in _corrected(engine, best[0]))]
            contenders["planned"] = best[0]
            contenders["tuned"], chosen = max(on_tried, key=lambda pair: pair[1].mean)
            found = {name: shown.method(config) for name, config in contenders.items()}
        expected = {
            "prior": found["prior"].report.expected_error or 0.0,
            "tuned": tried.median_error(chosen),
        }
        measured = {name: shown.median_error(found[name]) for name in expected}
        found["fewer_steps"] = shown.fewer_steps(ticks)
        yield {
            "steps": steps,
            "ticks": ticks,
            **figures(found),
            "expected": {name: round(error, 5) for name, error in expected.items()},
            "measured": {name: round(error, 5) for name, error in measured.items()},
        }


def unguided(testbed: str, steps: int, samples: int) -> Iterator[dict[str, Any]]:
    """For each speed-up the PSNR in dB to the full run of runs without guidance; the rows are as those of `compared`, and nothing is measured before."""
    shown = pictures(testbed, steps, samples, "choose", guidance=1.0)
    for speedup in SPEEDUPS:
        with judged_on(testbed):
            contenders = {**evens(speedup), "prior": TrajectoryConfig(speedup=speedup)}
            found = {name: shown.method(config) for name, config in contenders.items()}
        planned, ticks = found["prior"], allowed(steps, speedup)
        found["fewer_steps"] = shown.fewer_steps(ticks)
        yield {
            "steps": steps,
            "ticks": ticks,
            **figures(found),
            "expected": {"prior": round(planned.report.expected_error or 0.0, 5)},
            "measured": {"prior": round(shown.median_error(planned), 5)},
        }


def engine_on(samples: Cell) -> TrajectoryEngine:
    """What measures covariance and response on some samples, as `tune` does."""
    return TrajectoryEngine(Task(pipe=samples.pipe, calls=[samples.call(samples.steps)], ticks=samples.steps))


def _corrected(engine: TrajectoryEngine, config: CacheConfig) -> Iterator[CacheConfig]:
    """The method with the correction of its last step, as `tune` makes it."""
    schedule = engine.corrected(frozen(engine.task.pipe, engine.task.calls[0], config))
    if schedule is not None:
        yield ReplayConfig(schedule=schedule)


def _planned(measured: TrajectoryEngine, speedup: float) -> TrajectoryConfig:
    """With what was measured, as it is."""
    assert measured.measured is not None  # testbeds have one denoiser, or two that follow one another
    return TrajectoryConfig(
        speedup=speedup,
        covariance=measured.covariances[0],
        response=measured.response,
        amplification=measured.measured.amplification,
    )


def controlled(testbed: str, steps: int, samples: int) -> Iterator[dict[str, Any]]:
    """For each threshold what is computed, the error that the report expects and the measured one, and the PSNR beside even ticks."""
    shown = pictures(testbed, steps, samples, "choose")
    for threshold in THRESHOLDS:
        with judged_on(testbed):
            found = shown.method(TrajectoryConfig(threshold=threshold))
        ticks = len(found.report.computed_ticks)
        yield {
            "steps": steps,
            "threshold": threshold,
            "ticks": ticks,
            "expected": round(found.report.expected_error or 0.0, 4),
            "measured": round(shown.median_error(found), 4),
            "psnr": found.median,
            "even": max(shown.method(even).median for even in evens(steps / ticks).values()),
            "fewer_steps": shown.fewer_steps(ticks).median,
        }
