"""tune: finds a schedule for a speed-up or for a quality on some of the user's prompts, and measures it on others."""

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import nn

from diffcache.attach.attach import put_back_on_error
from diffcache.config import CacheConfig
from diffcache.host.components import check_call, denoisers_of, is_pipeline
from diffcache.profiling.recording.calling import Call, calls_hash, calls_of
from diffcache.profiling.recording.frozen import frozen
from diffcache.profiling.recording.full_runs import Measure
from diffcache.profiling.recording.journal import Journal, Spent, journal, journaling
from diffcache.profiling.recording.loops import Loop, target_of
from diffcache.profiling.recording.pictures import psnr
from diffcache.profiling.recording.pipeline_facts import facts_of, models_of
from diffcache.profiling.recording.processes import is_first, wait
from diffcache.profiling.searching.checkpoints import claim
from diffcache.profiling.tuning.aim import Aim
from diffcache.profiling.tuning.artifact import Found, missed, unit_of, write
from diffcache.profiling.tuning.bar import Bar
from diffcache.profiling.tuning.engine import Task
from diffcache.profiling.tuning.engines import ENGINES
from diffcache.profiling.tuning.judged import Judged
from diffcache.profiling.tuning.parts import three_parts
from diffcache.profiling.tuning.plain_steps import better_without
from diffcache.profiling.tuning.tuner import Tuner
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.few_steps import refuse_beyond
from diffcache.recipes.replay import ReplayConfig
from diffcache.schedulers.errors import ConfigError, TargetError
from diffcache.schedulers.numbers_given import is_number
from diffcache.schedulers.schedule import Schedule

logger = logging.getLogger("diffcache")

LONG = 500
"""Characters from which on what a proposal was made with, such as a covariance, is not repeated in the artifact."""

FRONT = (0.25, 1 / 3, 0.42, 0.5, 2 / 3)
"""Shares of the work of a front."""

SPENT = "minutes= was over before a proposal was judged: give more, or call again to continue in the folder."
"""Why nothing is returned."""

LATENTS = (
    "output_type='latent': tune measures pictures in 0..1, so its figures are of latents cut off at 0 and 1, and not dB of pictures; "
    "pass 'pt'."
)
"""What is said where no pictures are made."""

TOO_FEW = "tune measures on some prompts, chooses on others and verifies on a third part: with fewer than three prompts nothing is verified; give more."
"""What is said of one or two prompts."""

JOURNAL, PIPELINE = "journal", "pipeline.json"
"""In the folder: what was rendered, and of which pipeline."""


def tune(
    pipe: Any,
    prompts: Sequence[str | Call],
    *,
    speedup: float | None = None,
    quality: float | None = None,
    front: bool = False,
    at_least: float | None = None,
    minutes: float | None = None,
    engine: str = "trajectory",
    sites: str | None = None,
    objective: Measure = psnr,
    folder: str | Path | None = None,
    seed: int = 0,
    verbose: bool = False,
    **call: Any,
) -> Any:
    """Finds a schedule on some prompts, chooses it on others, and measures it once on a third part.

    An engine proposes methods (`ENGINES`). They are rendered beside the full runs of the prompts to choose on. For a speed-up the one that is
    better than others on most prompts wins; for a quality the method with the fewest computed ticks that keeps it. What the winner gives on the third part,
    which nothing depends on, is stored with the confidence that it has (`measured["verify"]`), beside as many evenly spaced
    ticks and the plain pipeline with fewer steps. Where one of these is better, a warning says so.

    With a folder every render is noted there. After an interruption, even a kill, the same call continues: nothing is rendered
    twice, and the result is the same. Ctrl-C ends the search with the best so far, which is not verified then. Under `accelerate
    launch` the processes share the renders.

    Args:
        pipe: a pipeline or a `Loop`; it is plain afterwards, and after an error as it was.
        prompts: texts, or whole calls as keyword arguments (for pipelines without a prompt). With fewer than three nothing is
            verified.
        speedup: all ticks over computed ticks, at least 1.
        quality: what the objective must be on most samples, such as 35.0 (dB).
        front: find one schedule for each of 25, 33, 42, 50 and 67 % of the work.
        at_least: the share of samples that must keep the quality; None: 0.9.
        minutes: time for the search; what follows it, some renders more, comes on top. None: no limit.
        engine: "trajectory", "dp", "evolution", "router", "ertacache", "profilingdit", "dpcache", "meancache", "bac", "magcache" or
            "teacache".
        sites: what is cached, as `UniformConfig.site` ("model", "block", "sub-layer"); None: what suits the engine.
        objective: a function of pictures and the full run's pictures, both [N, ..., H, W] in 0..1, that returns one number for each sample; larger is better.
        folder: for the result, which `accelerate(pipe, folder)` loads, and for what was rendered; None: nothing is written.
        seed: prompt i is drawn with the seed `seed` + i; also of all random numbers of the search.
        verbose: show how long it will take, and a progress bar.
        **call: further arguments of every call (`num_inference_steps`, `height`, ...). Pictures are measured, so `output_type="latent"`
            gives figures of little use, and a warning.

    Returns:
        A `Schedule`; of the engines "magcache" and "teacache", which decide in the run, a `CacheConfig`; of a front a list.

    Raises:
        ConfigError: a value is out of range, there are no prompts, or nothing meets the aim.
        TargetError: the target is a denoiser without its pipeline.
        ScheduleError: the folder belongs to another pipeline.
    """
    aim = Aim(speedup, quality, front, at_least)
    _check_place(folder, seed)
    _check(pipe, prompts, aim, engine, objective, minutes)
    calls = calls_of(prompts, seed, **call)
    for one in calls:
        if isinstance(pipe, Loop):
            pipe.check(one)
        elif is_pipeline(pipe):
            check_call(pipe, one)
    of_latents = any(one.get("output_type") == "latent" for one in calls)
    if of_latents and is_first():
        logger.warning(LATENTS)
    if len(calls) < 3 and is_first():
        logger.warning(TOO_FEW)
    parts = three_parts(calls, ENGINES[engine].fitted)
    with ExitStack() as stack:
        stack.enter_context(put_back_on_error(target_of(pipe)))
        place = Path(folder) if folder is not None else Path(stack.enter_context(TemporaryDirectory()))
        notes = stack.enter_context(journaling(Journal(place / JOURNAL, minutes=minutes)))
        if is_first():
            claim(place / JOURNAL / PIPELINE, facts_of(pipe))
        wait()
        ticks = frozen(pipe, parts.fit[0], EvenConfig(speedup=1)).num_ticks  # a full run tells
        refuse_beyond(aim.speedup or 1, ticks)
        task = Task(pipe=pipe, calls=parts.fit, ticks=ticks, folder=place / JOURNAL, sites=sites, seed=seed)
        tuner = Tuner(task, parts, engine, objective)
        bar = Bar(*_work(tuner, aim), shown=verbose)
        stack.callback(bar.close)
        notes.progress = bar
        producer = {"method": "tune", "engine": engine, "prompts": calls_hash(calls), "seed": int(seed)}
        measure = getattr(objective, "__name__", type(objective).__name__)
        producer["objective"] = f"{measure} of latents" if of_latents else measure
        if aim.front:
            return _front(tuner, producer, folder)
        best, stopped = _searched(tuner, aim)
        if best is None:
            raise ConfigError(SPENT)
        found = _concluded(tuner, best, stopped, aim, producer)
    if folder is not None and is_first():
        write(found, Path(folder))
    wait()
    return found.method


def _check_place(folder: Any, seed: Any) -> None:
    """Refuses what names no folder, and what begins no random numbers."""
    if folder is not None and not (isinstance(folder, (str, Path)) and str(folder)):
        raise ConfigError(f"folder={folder!r}: give a folder's path, which is made if need be.")
    if folder is not None and Path(folder).is_file():
        raise ConfigError(f"folder={str(folder)!r} is a file: name a folder, which is made if need be.")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise ConfigError(f"seed={seed!r}: give a whole number, such as 0.")


def _check(pipe: Any, prompts: Any, aim: Aim, engine: str, objective: Any, minutes: float | None) -> None:
    """Refuses arguments of `tune` that cannot be followed."""
    if not _are_prompts(prompts):
        raise ConfigError(
            'tune() needs a list of prompts, best of three and more: ["a fox", "a boat", "a hat"].'
        )
    if objective is psnr and aim.quality is not None and aim.quality < 0:
        raise ConfigError(
            f"quality={aim.quality!r}: give a PSNR in dB, such as 35.0, which is never below 0."
        )
    if isinstance(pipe, nn.Module):
        raise TargetError("tune() renders pictures: give it the pipeline, or a Loop around the denoiser.")
    if engine not in ENGINES:
        raise ConfigError(f"engine={engine!r}: choose one of {', '.join(ENGINES)}.")
    if not callable(objective):
        raise ConfigError(
            f"objective={objective!r}: give a function of pictures and full runs; names are for the command."
        )
    if minutes is not None and not (is_number(minutes) and minutes > 0):
        raise ConfigError(f"minutes={minutes!r}: give a number above 0.")
    denoisers_of(target_of(pipe))


def _are_prompts(prompts: Any) -> bool:
    """Whether they are a list of texts or calls, and not one text."""
    if isinstance(prompts, str) or not isinstance(prompts, Sequence) or not prompts:
        return False
    return all(isinstance(prompt, (str, Mapping)) for prompt in prompts)


def _searched(tuner: Tuner, aim: Aim) -> tuple[Judged | None, str | None]:
    """The best proposal, None where the time was over before one was judged, and what stopped the search before its end."""
    try:
        if aim.quality is not None:
            return tuner.for_quality(aim.quality, aim.share_of_samples), None
        assert aim.speedup is not None
        return tuner.for_compute(1 / aim.speedup), None
    except (KeyboardInterrupt, Spent) as stop:
        if tuner.best is None and isinstance(stop, KeyboardInterrupt):
            raise
        return tuner.best, "time" if isinstance(stop, Spent) else "interrupted"


def _concluded(tuner: Tuner, best: Judged, stopped: str | None, aim: Aim, producer: dict[str, Any]) -> Found:
    """The artifact of the best proposal, with what was measured."""
    with journal().untimed():
        figures = tuner.verified(best, aim, [] if stopped == "interrupted" else tuner.parts.verify)
    made, models = {**producer, **aim.as_json()}, models_of(tuner.task.pipe)
    for remark in (missed(made, figures), better_without(figures, unit_of(made))):
        if remark is not None and is_first():
            logger.warning("%s.", remark)
    if stopped is not None:
        figures["stopped"] = stopped
    if isinstance(best.config, ReplayConfig):
        schedule = best.config.schedule
        made["proposal"] = {name: its for name, its in schedule.producer.items() if len(str(its)) < LONG}
        return Found(replace(schedule, measured=figures, producer=made), made, figures, models)
    return Found(best.config, made, figures, models)


def _front(tuner: Tuner, producer: dict[str, Any], folder: str | Path | None) -> list[Schedule | CacheConfig]:
    """One method for each share; each in a folder of its own, and that of half the work in the folder itself.

    Where the time is over, or somebody interrupts, those that were finished are returned.
    """
    made = list[Schedule | CacheConfig]()
    for compute in FRONT:
        aim, tuner.best = Aim(speedup=1 / compute), None
        try:
            best, stopped = _searched(tuner, aim)
            if best is None:
                break
            found = _concluded(tuner, best, stopped, aim, producer)
        except KeyboardInterrupt:
            if not made:
                raise
            break
        made.append(found.method)
        if folder is not None and is_first():
            write(found, Path(folder) / f"front-{round(100 * compute)}")
            if compute == 0.5:
                write(found, Path(folder))
        if stopped is not None:
            break
    if not made:
        raise ConfigError(SPENT)
    if len(made) < len(FRONT) and is_first():
        logger.warning(
            "The front ends after %d of %d methods: its time was over, or it was interrupted.",
            len(made),
            len(FRONT),
        )
    return made


def _work(tuner: Tuner, aim: Aim) -> tuple[int, float]:
    """About how many renders there will be, and of how many full runs they are the work."""
    choose, verify = len(tuner.parts.choose), len(tuner.parts.verify)
    computes: tuple[float, ...] = FRONT if aim.front else (1 / (aim.speedup or 2),)
    if aim.quality is not None:
        computes = (0.5,) * math.ceil(math.log2(max(tuner.ticks, 2)))
    fit, each = tuner.engine.fit_renders(), tuner.engine.proposals * choose + 3 * verify
    renders = fit + choose + verify + len(computes) * each
    return renders, fit + choose + verify + sum(compute * each for compute in computes)
