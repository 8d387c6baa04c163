"""Records a pipeline in full computation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from diffcache.config import CacheConfig
from diffcache.hooks.class_swap import base_class
from diffcache.host.compiled import each_uncompiled
from diffcache.host.components import denoisers_of, noise_schedulers_of
from diffcache.host.identity import model_of
from diffcache.profiling.recording.calling import Call, accelerated, calls_hash, watched_run
from diffcache.profiling.recording.loops import target_of
from diffcache.profiling.recording.recorder import Recorder
from diffcache.profiling.recording.recording import JSON_NAME, Place, Recording
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.uniform import UniformConfig
from diffcache.reports.records import RunRecord
from diffcache.schedulers.errors import ConfigError, ScheduleError
from diffcache.schedulers.schedule import Schedule


def record(
    pipe: Any,
    calls: Sequence[Call],
    *,
    sites: str = "model",
    basis: str = "residual",
    lag: int | None = None,
    along: Schedule | None = None,
    folder: str | Path | None = None,
) -> Recording:
    """Runs the calls in full and records how much every place changes, and what it costs.

    Args:
        pipe: a pipeline, or a `Loop`; it is plain afterwards.
        calls: keyword arguments of each; all with the same number of steps.
        sites: which places, as for `UniformConfig.site`.
        basis: what is recorded of the whole model: "residual" (v - x) or "output" (v).
        lag: ticks back to which features are compared; None for the whole run.
        along: a schedule of whole denoisers: everything is computed, but the runs go where its reuse leads (closed loop),
            and its own basis is recorded.
        folder: where the recording is written after each call. What was interrupted there is gone on with, and ends as if
            it never had been.

    Raises:
        ConfigError: there is no call.
        TargetError: no denoising loop was seen, or several in one call.
        ScheduleError: the folder holds a recording of something else.
    """
    if not calls:
        raise ConfigError("calls: give at least one.")
    asked = {"calls": len(calls), "hash": calls_hash(calls), "sites": sites, "basis": basis, "lag": lag}
    asked |= {"along": None if along is None else along.fingerprint()}
    begun = None if folder is None else _begun(Path(folder), pipe, asked)
    done = 0 if begun is None else begun.runs
    if begun is not None and done == len(calls):
        return begun
    config = _everything(sites, basis) if along is None else ReplayConfig(schedule=along)
    recorder = Recorder(lag, {} if begun is None else begun.curves, along=along is not None)
    try:
        with accelerated(pipe, config):
            for call in tqdm(
                calls[done:], desc="recording", initial=done, total=len(calls), disable=len(calls) < 2
            ):
                run = watched_run(pipe, call, recorder)
                recorder.end_run()
                recording = _recording(run, recorder, asked)
                if folder is not None:
                    recording.save(folder)
    finally:
        recorder.close()
    return recording


def _recording(run: RunRecord, recorder: Recorder, asked: dict[str, Any]) -> Recording:
    """What has been recorded so far; `run` is the newest."""
    sigmas = None if run.sigmas is None else tuple(run.sigmas)
    cached = dict.fromkeys(call.site for call in run.calls if call.cached)
    places = {name: Place(recorder.kinds[name], _price(run, name)) for name in cached}
    rest = sum(call.weight for call in run.calls if not call.cached) / (run.num_ticks or 1)
    curves = {key: curve for place in places for key, curve in recorder.curves.items() if key[0] == place}
    return Recording(run.models, run.noise_scheduler, sigmas, curves, asked, places, rest)


def _begun(folder: Path, pipe: Any, asked: dict[str, Any]) -> Recording | None:
    """The recording that a folder holds already, if it is of this."""
    if not (folder / JSON_NAME).exists():
        return None
    found = Recording.load(folder)
    changed = [name for name in asked if asked[name] != found.prompts.get(name)]
    here = {name: model_of(module) for name, module in each_uncompiled(denoisers_of(target_of(pipe))).items()}
    changed += [
        name
        for name, made in found.models.items()
        if name not in here or (here[name].name, here[name].config) != (made.name, made.config)
    ]
    if found.noise_scheduler not in (
        None,
        *(base_class(type(s)).__name__ for s in noise_schedulers_of(pipe)),
    ):
        changed.append("noise scheduler")
    if changed:
        raise ScheduleError(
            f"{folder}: holds a recording with another {', '.join(changed)}: choose another folder."
        )
    return found


def _price(run: RunRecord, place: str) -> float:
    return sum(call.weight for call in run.calls if call.site == place) / (run.num_ticks or 1)


def _everything(sites: str, basis: str) -> CacheConfig:
    return UniformConfig(interval=1, site=sites, basis=basis)  # type: ignore[arg-type]
