"""Why a run reused nothing, or ended early, in the words of its report."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from diffcache.reports.few_steps import FEW_STEPS, few_steps_advice
from diffcache.reports.fresh_noise import FreshNoise
from diffcache.reports.records import CallRecord, RunRecord
from diffcache.schedulers.guards import NO_SIGNAL, NOTHING_STORED, TAIL, WARM_UP

COVERED = "warm-up and tail cover the whole run: lower warmup_steps= or tail_steps="
OWN_THRESHOLD = "every change was above the method's own threshold: pass a larger threshold="


def why_nothing_was_reused(
    calls: Sequence[tuple[int, CallRecord]], records: Sequence[RunRecord], options: Mapping[str, Any]
) -> str:
    """The one reason that explains all calls, or else every reason with the number of its ticks.

    Args:
        calls: of all runs, each with its tick; at least one.
        records: of the runs; at least one.
        options: of the method.
    """
    num_ticks = 1 + max(tick for tick, _ in calls)
    noise = next((record.fresh_noise for record in records if record.fresh_noise is not None), None)
    is_asked = all(tick == 0 or call.reason in (None, WARM_UP, TAIL) for tick, call in calls)
    asked = _what_computed(num_ticks, options, noise, is_asked=is_asked)
    reasons: dict[str, set[int]] = {}
    for tick, call in [of for of in calls if of[1].cached] or calls:
        reasons.setdefault(call.reason or asked, set()).add(tick)
    if noise is not None and noise.advice in reasons:
        return noise.advice
    forced = {WARM_UP, TAIL, NOTHING_STORED, NO_SIGNAL}
    if options.get("threshold"):
        forced.add(asked)
    is_short, ended = num_ticks <= FEW_STEPS, ended_early(records[-1])
    if ended and set(reasons) <= ({*forced, asked} if is_short else {WARM_UP, TAIL}):
        return ended
    if is_short and set(reasons) <= forced:
        return few_steps_advice(num_ticks, branches=len({call.branch for _, call in calls}))
    if set(reasons) <= {WARM_UP, TAIL}:
        return COVERED
    most_first = sorted(reasons.items(), key=lambda item: len(item[1]), reverse=True)
    return ", ".join(counted(reason, ticks) for reason, ticks in most_first)


def ended_early(record: RunRecord) -> str | None:
    """Where a run ended that was broken off; None where it came to its end, or nothing tells its length."""
    ticks = 1 + max((call.tick for call in record.calls), default=-1)
    if record.num_ticks is None or ticks >= record.num_ticks:
        return None
    return f"the run ended at tick {ticks} of {record.num_ticks}"


def counted(reason: str, ticks: Collection[int]) -> str:
    """A reason with the number of its ticks."""
    return f"{reason} ({len(ticks)} {'tick' if len(ticks) == 1 else 'ticks'})"


def _what_computed(
    num_ticks: int, options: Mapping[str, Any], noise: FreshNoise | None, *, is_asked: bool
) -> str:
    """Why calls were computed that no guard made compute; `is_asked`: but for the first ticks and the last all are such."""
    threshold, speedup = options.get("threshold"), options.get("speedup")
    if speedup is not None:
        left = "leaves nothing to reuse in" if is_asked else "computes some of"
        return f"speedup={speedup:g} {left} {num_ticks} ticks"
    if noise is not None and "threshold" in options:
        return noise.advice
    if threshold is not None:
        return f"threshold={threshold} allows no reuse here: raise it"
    return OWN_THRESHOLD if "threshold" in options else "the method asked for it"
