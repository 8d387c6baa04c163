"""The plain pipeline with fewer steps, and evenly spaced ticks: what a schedule has to beat, and the advice to take them where they win."""

import inspect
from collections.abc import Mapping
from typing import Any

from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.shares import ticks_for

STEPS = "num_inference_steps"
"""What pipelines call the number of steps."""

FEWER, EVEN = "fewer steps at this compute", "even ticks at this compute"
"""Of what was measured on the calls to verify on."""


def steps_for(pipe: Any, call: Call, compute: float) -> int | None:
    """With how many steps a pipeline does no more than a share of a call's work; None where steps cannot be chosen, or not fewer.

    Args:
        pipe: a pipeline or a `Loop`.
        call: its arguments; without a number of steps the pipeline's own default counts.
        compute: the share.
    """
    named = inspect.signature(pipe.__call__).parameters.get(STEPS)
    steps = call.get(STEPS, named.default) if named else None
    if not isinstance(steps, int) or not 1 / steps <= compute < 1:
        return None
    return ticks_for(compute, steps)


def better_without(measured: Mapping[str, Any], unit: str = "") -> str | None:
    """The advice to do without a schedule where fewer steps or evenly spaced ticks had a higher median on the calls to verify on.

    It names the better of the two. None where neither was better.

    Args:
        measured: of a schedule from `tune`.
        unit: of the medians, see `unit_of`.
    """
    verify = measured.get("verify", {})
    medians = {}
    if (plain := verify.get(FEWER)) is not None:
        medians[f"{STEPS}={plain[STEPS]} without a cache"] = plain["median"]
    if (even := verify.get(EVEN)) is not None:
        medians['the method "even"'] = even["median"]
    best = max(medians, key=medians.__getitem__, default=None)
    if best is None or medians[best] <= verify["median"]:
        return None
    return (
        f"{best} is better at this compute: a median of {medians[best]:.2f}{unit}, and {verify['median']:.2f}{unit} with this "
        "schedule"
    )
