"""Records a pipeline in full computation."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from diffcache import accelerate, report, restore
from diffcache.config import CacheConfig
from diffcache.observing import Observer, observed
from diffcache.profiling.loops import target_of
from diffcache.profiling.pictures import rewound
from diffcache.profiling.recorder import Recorder
from diffcache.profiling.recording import Place, Recording
from diffcache.records import RunRecord
from diffcache.schedulers.errors import TargetError

Call = dict[str, Any]


def record(
    pipe: Any, calls: Sequence[Call], *, sites: str = "model", basis: str = "residual", lag: int | None = None
) -> Recording:
    """Runs the calls in full and records how much every place changes.

    Args:
        pipe: a pipeline, or a `Loop`; it is plain afterwards.
        calls: keyword arguments of each; all with the same number of steps.
        sites: which places, as for `UniformConfig.site`.
        basis: what is recorded of the whole model: "residual" (v - x) or "output" (v).
        lag: ticks back to which features are compared; None for the whole run.

    Raises:
        TargetError: no denoising loop was seen, or several in one call.
    """
    recorder = Recorder(lag)
    last: RunRecord | None = None
    try:
        with accelerated(pipe, _everything(sites, basis)):
            for call in tqdm(calls, desc="recording", disable=len(calls) < 2):
                last = watched_run(pipe, call, recorder)
                recorder.end_run()
    finally:
        recorder.close()
    assert last is not None
    sigmas = None if last.sigmas is None else tuple(last.sigmas)
    prompts = {"calls": len(calls), "hash": calls_hash(calls)}
    cached = dict.fromkeys(call.site for call in last.calls if call.cached)
    places = {name: Place(recorder.kinds[name], _price(last, name)) for name in cached}
    rest = sum(call.weight for call in last.calls if not call.cached) / (last.num_ticks or 1)
    return Recording(last.models, last.noise_scheduler, sigmas, recorder.curves, prompts, places, rest)


def watched_run(pipe: Any, call: Call, observer: Observer) -> RunRecord:
    """One call of an accelerated pipeline under an observer; the record of its denoising loop."""
    with observed(observer):
        pipe(**rewound(call))
    records: list[RunRecord] = report(target_of(pipe)).records
    if len(records) != 1:
        raise TargetError(f"a call with one denoising loop can be calibrated; this one had {len(records)}.")
    return records[0]


@contextmanager
def accelerated(pipe: Any, config: CacheConfig) -> Iterator[None]:
    """For a while."""
    accelerate(target_of(pipe), config)
    try:
        yield
    finally:
        restore(target_of(pipe))


def calls_hash(calls: Sequence[Call]) -> str:
    """Of what the calls were given, as far as it can be written down."""
    text = repr([{name: value for name, value in call.items() if _plain(value)} for call in calls])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _price(run: RunRecord, place: str) -> float:
    return sum(call.weight for call in run.calls if call.site == place) / (run.num_ticks or 1)


def _everything(sites: str, basis: str) -> CacheConfig:
    from diffcache import UniformConfig

    return UniformConfig(interval=1, site=sites, basis=basis)  # type: ignore[arg-type]


def _plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_plain(item) for item in value)
    return isinstance(value, (str, int, float, bool, type(None)))
