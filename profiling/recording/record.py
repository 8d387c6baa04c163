"""Recording: runs a pipeline without reusing anything, and records how its features change and what they cost."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from diffcache.config import CacheConfig
from diffcache.profiling.recording.calling import Call, accelerated, calls_hash, refuse_no_calls, watched_run
from diffcache.profiling.recording.each_call import mean_over_calls, of_each_call
from diffcache.profiling.recording.journal import Entry
from diffcache.profiling.recording.pipeline_facts import digests_of
from diffcache.profiling.recording.recorder import Metric, Recorder
from diffcache.profiling.recording.recording import JSON_NAME, STATISTICS, Curve, RecordedSite, Recording
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.uniform import UniformConfig
from diffcache.reports.records import RunRecord
from diffcache.schedulers.errors import ConfigError, ScheduleError
from diffcache.schedulers.numbers_given import is_count
from diffcache.schedulers.schedule import GUIDANCE_SCALE, Schedule
from diffcache.store.streams import Basis


def record(
    pipe: Any,
    calls: Sequence[Call],
    *,
    sites: str = "model",
    basis: Basis = "residual",
    lag: int | None = None,
    metric: Metric = "l1",
    folder: str | Path | None = None,
) -> Recording:
    """Runs the calls without reusing anything, and records how much every site changes and what it costs.

    Args:
        pipe: a pipeline or a `Loop`; it is plain afterwards.
        calls: keyword arguments of each call, all with the same number of steps.
        sites: what to record, as `UniformConfig.site`.
        basis: what to record of the whole model: its "residual", its "output" or the "velocity".
        lag: how many ticks back features are compared; None: to the start of the run.
        metric: how features are compared. "l2" and "cosine" are estimated from sketches, which take kilobytes for each feature;
            for "l1" every feature of a run is kept on disk until the run ends.
        folder: where the recording is written after each call. A recording that was interrupted there is continued, and is the
            same in the end.

    Raises:
        ConfigError: there is no call, or a lag or a metric that there is not; or the calls have different numbers of steps.
        TargetError: a call had no denoising loop, or several.
        ScheduleError: the folder holds a recording of something else.
    """
    if metric not in get_args(Metric):
        raise ConfigError(f"metric={metric!r}: choose one of {', '.join(get_args(Metric))}.")
    if lag is not None and not is_count(lag):
        raise ConfigError(
            f"lag={lag!r}: give a whole number of ticks, one at least, or None for the whole run."
        )
    asked = _asked(calls, sites=sites, basis=basis, lag=lag, metric=metric, along=None)
    if folder is not None:
        asked |= digests_of(pipe)
    earlier = None if folder is None else _earlier(Path(folder), asked)
    if earlier is not None and earlier.runs == len(calls):
        return earlier
    config = UniformConfig(interval=1, site=sites, basis=basis)
    with Recorder(lag, {} if earlier is None else earlier.curves, metric) as recorder:
        return _recorded(pipe, calls, config, recorder, asked, folder)


def recorded(pipe: Any, calls: Sequence[Call], **options: Any) -> Recording:
    """As `record` with these options, but a call that the open journal has is not run again, and processes share the calls."""

    def alone(call: Call) -> Entry:
        found = record(pipe, [call], **options)
        return Entry(found.tensors(), found.as_json())

    entries = of_each_call("recording", calls, alone, **options)
    recordings = [Recording.of_json(entry.facts, entry.tensors) for entry in entries]
    return _mean(recordings, {**recordings[-1].prompts, "calls": len(calls), "hash": calls_hash(calls)})


def _mean(recordings: Sequence[Recording], asked: dict[str, Any]) -> Recording:
    """One recording of the runs of several, which count alike.

    Raises:
        ConfigError: they have different guidance passes or numbers of steps.
    """
    if len({tuple(recording.curves) for recording in recordings}) > 1:
        raise ConfigError("calls: their guidance passes differ; give all calls guidance, or none.")
    curves = {}
    for key, last in recordings[-1].curves.items():
        each = [recording.curves[key] for recording in recordings]
        means = {name: mean_over_calls([getattr(curve, name) for curve in each]) for name in STATISTICS}
        curves[key] = Curve(**means, flops=last.flops, runs=len(each))
    return replace(recordings[-1], curves=curves, prompts=asked)


def record_closed_loop(pipe: Any, calls: Sequence[Call], schedule: Schedule) -> Recording:
    """Records the whole denoisers on the trajectory that a schedule's reuse leads to.

    Everything is computed, but at reused ticks the run continues with the prediction. The schedule's basis is recorded.

    Args:
        pipe: a pipeline or a `Loop`; it is plain afterwards.
        calls: keyword arguments of each call, all with the same number of steps.
        schedule: of whole denoisers.

    Raises:
        ConfigError: there is no call.
        TargetError: a call had no denoising loop, or several.
    """
    asked = _asked(
        calls, sites="model", basis="residual", lag=None, metric="l1", along=schedule.fingerprint()
    )
    with Recorder(closed=True) as recorder:
        return _recorded(pipe, calls, ReplayConfig(schedule=schedule), recorder, asked)


def _asked(calls: Sequence[Call], **options: Any) -> dict[str, Any]:
    """What is to be recorded, as `Recording.prompts`.

    Raises:
        ConfigError: there is no call.
    """
    refuse_no_calls(calls)
    return {"calls": len(calls), "hash": calls_hash(calls), **options}


def _recorded(
    pipe: Any,
    calls: Sequence[Call],
    config: CacheConfig,
    recorder: Recorder,
    asked: dict[str, Any],
    folder: str | Path | None = None,
) -> Recording:
    """Runs the calls that the recorder does not know yet."""
    done = next((curve.runs for curve in recorder.curves.values()), 0)
    with accelerated(pipe, config):
        for call in calls[done:]:
            run = watched_run(pipe, call, recorder)
            recorder.end_run()
            recording = _recording(run, recorder, asked)
            if folder is not None:
                recording.save(folder)
    return recording


def _recording(run: RunRecord, recorder: Recorder, asked: dict[str, Any]) -> Recording:
    """The recording after its newest run."""
    sigmas = None if run.sigmas is None else tuple(run.sigmas)
    cached = dict.fromkeys(call.site for call in run.calls if call.cached)
    sites = {name: RecordedSite(recorder.kinds[name], _price(run, name)) for name in cached}
    rest = sum(call.weight for call in run.calls if not call.cached) / (run.num_ticks or 1)
    curves = {key: curve for site in sites for key, curve in recorder.curves.items() if key[0] == site}
    scale = run.predictor.get(GUIDANCE_SCALE)
    return Recording(run.models, run.noise_scheduler, sigmas, curves, asked, sites, rest, scale)


def _earlier(folder: Path, asked: dict[str, Any]) -> Recording | None:
    """The recording that a folder holds.

    Raises:
        ScheduleError: it is of something else.
    """
    if not (folder / JSON_NAME).exists():
        return None
    found = Recording.load(folder)
    changed = [name for name in asked if asked[name] != found.prompts.get(name)]
    if changed:
        raise ScheduleError(
            f"{folder}: holds a recording with another {', '.join(changed)}: choose another folder."
        )
    return found


def _price(run: RunRecord, site: str) -> float:
    return sum(call.weight for call in run.calls if call.site == site) / (run.num_ticks or 1)
