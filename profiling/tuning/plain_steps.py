"""The plain pipeline with fewer steps: what a schedule has to beat, and the advice to take it where it wins."""

import inspect
from collections.abc import Mapping
from typing import Any

from diffcache.profiling.recording.calling import Call
from diffcache.profiling.recording.shares import ticks_for

STEPS = "num_inference_steps"
"""What pipelines call the number of steps."""

FEWER = "fewer steps at this compute"
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


def better_without(measured: Mapping[str, Any]) -> str | None:
    """The advice to take fewer steps and no cache; None where that was not better on the calls to verify on.

    Args:
        measured: of a schedule from `tune`.
    """
    verify = measured.get("verify", {})
    plain = verify.get(FEWER)
    if plain is None or plain["mean"] <= verify["mean"]:
        return None
    return (
        f"{STEPS}={plain[STEPS]} without a cache is better at this compute: {plain['mean']:.2f} on average, and {verify['mean']:.2f} with this "
        "schedule"
    )
