"""A run that is over as a schedule, which does the same again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from diffcache.reports.records import MIXED, RunRecord
from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.steps import Decision


def frozen(
    method: str, options: dict[str, Any], records: Sequence[RunRecord], measured: Mapping[str, float]
) -> Schedule:
    """The decisions of a call's one run.

    Args:
        method, options: name and options of the method that decided.
        records: of all runs of the call.
        measured: what the call gave.

    Raises:
        ScheduleError: see `RunReport.to_schedule`.
    """
    if not any(record.calls for record in records):
        raise ScheduleError(
            "to_schedule() needs a run: call the pipeline first, and take the report after it; a hand-written loop runs inside denoising_run(denoiser, steps)."
        )
    # What a pipeline computes before its loop, as keys and values of reference pictures, is no loop.
    loops = [record for record in records if record.observed] or records
    if len(loops) != 1:
        raise ScheduleError(
            f"to_schedule() needs a call with one denoising loop; this one had {len(loops)}: take one of the report's `runs`."
        )
    (record,) = loops
    if options.get("per_sample") or any(call.mark == MIXED for call in record.calls):
        raise ScheduleError("a per_sample run cannot be frozen: its samples were decided apart.")
    if "rows" not in options and any(call.mark == Decision.ROWS.value for call in record.calls):
        raise ScheduleError(
            f"a {method} run cannot be frozen: it chose the tokens that it computed by itself. Use the method again."
        )
    sigmas = record.nominal_sigmas or record.sigmas
    schedule = Schedule(
        models=record.models,
        table=record.marks(),
        noise_scheduler=record.noise_scheduler,
        sigmas=None if sigmas is None else tuple(sigmas),
        predictor=record.predictor,
        quantization=record.quantization,
        producer={"method": method, "options": options},
        measured=measured,
    )
    if not record.corrections:
        return schedule
    return replace(schedule, corrections=record.corrections, fitted_with=schedule.fingerprint())
