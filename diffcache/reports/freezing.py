"""Freezing: a run's decisions as a schedule."""

from typing import TYPE_CHECKING

from diffcache.reports.records import MIXED, RunRecord
from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.schedule import NOT_CALLED, Schedule

if TYPE_CHECKING:
    from diffcache.reports.run_report import RunReport


def freeze(report: "RunReport") -> Schedule:
    """The schedule that repeats a report's only run."""
    if len(report.records) != 1 or not report.calls:
        raise ScheduleError(
            f"to_schedule() needs a call with one denoising loop; this one had {len(report.records)}."
        )
    (record,) = report.records
    if any(call.mark == MIXED for call in record.calls):
        raise ScheduleError("a per_sample run cannot be frozen: its samples were decided apart.")
    if report.options.get("per_sample"):
        raise ScheduleError("a per_sample run cannot be frozen: its samples are decided apart.")
    return Schedule(
        models=record.models,
        table=_table(record),
        noise_scheduler=record.noise_scheduler,
        sigmas=None if record.sigmas is None else tuple(record.sigmas),
        predictor=record.predictor,
        quantization=record.quantization,
        producer={"method": report.method, "options": report.options},
        measured={"compute_fraction": report.compute_fraction, "cache_bytes": report.cache_bytes},
    )


def _table(record: RunRecord) -> dict[str, dict[str, str]]:
    ticks = record.num_ticks or 1 + max(call.tick for call in record.calls)
    marks: dict[str, dict[str, list[str]]] = {}
    for call in (call for call in record.calls if call.cached):
        row = marks.setdefault(call.site, {}).setdefault(call.branch, [NOT_CALLED] * ticks)
        row[call.tick] = call.mark
    return {site: {branch: "".join(row) for branch, row in rows.items()} for site, rows in marks.items()}
