"""ProfilingDiT: which blocks draw the foreground, and the schedule that caches the others."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from support.harness import reference
from support.searches.flux_calls import FLUX, flux_calls
from zoo.pipelines import CASES

from diffcache import Schedule, accelerate, report
from diffcache.host.weight_formats import quantization_of
from diffcache.profiling.calibrating.profilingdit import calibrate_profilingdit, foreground_scores
from diffcache.recipes.profilingdit import SHRINKING, ProfilingDiTConfig, shrinking
from diffcache.schedulers.errors import ConfigError, TargetError

STEPS = 8


def test_intervals_shrink_over_the_run() -> None:
    ticks = shrinking(6, 50, 12, 2)
    gaps = [b - a for a, b in pairwise(ticks)]
    assert ticks[:2] == [6, 18] == list(SHRINKING[:2])
    assert gaps == sorted(gaps, reverse=True)
    assert abs(len(ticks) - len(SHRINKING)) <= 1
    assert shrinking(2, 8, 2, 2) == [2, 4, 6]
    with pytest.raises(ConfigError, match="shrink_to must be at most interval"):
        ProfilingDiTConfig(interval=3, shrink_to=4)


@pytest.mark.parametrize("background", [-0.5, 0.0, 1.5, float("nan")])
def test_a_background_that_is_no_share_is_refused(background: float) -> None:
    with pytest.raises(ConfigError, match=f"background={background}: give the share"):
        calibrate_profilingdit(FLUX.build(), flux_calls(STEPS, 1), background=background)


def test_blocks_that_attend_to_the_foreground_are_not_cached(tmp_path: Path) -> None:
    pipe = FLUX.build()
    calls = flux_calls(STEPS)
    scores = foreground_scores(pipe, calls)
    assert len(scores) == 6
    assert all(0 <= score <= 1 for score in scores.values())
    schedule = calibrate_profilingdit(pipe, calls, background=0.5, interval=4)
    assert torch.equal(FLUX.render(pipe, 0, STEPS), reference("FluxPipeline", 0, STEPS))
    cached = {unit for site in schedule.table for unit in expand(site.removeprefix("transformer."))}
    assert cached == set(sorted(scores, key=lambda block: scores[block])[:3])
    accelerate(pipe, str(schedule.save_pretrained(tmp_path)))
    FLUX.render(pipe, 0, STEPS)
    assert (
        report(pipe).compute_fraction == Schedule.from_pretrained(tmp_path).measured["compute_fraction"] < 1
    )


def expand(site: str) -> list[str]:
    """The blocks of a site."""
    first, _, last = site.partition("..")
    name, begin = first.rsplit(".", 1)
    end = (last or first).rsplit(".", 1)[1]
    return [f"{name}.{i}" for i in range(int(begin), int(end) + 1)]


def test_a_quantised_pipeline_stays_quantised() -> None:
    pipe = FLUX.build()
    accelerate(pipe, "uniform", interval=1, quantize="int8-weight-only", keep_original=True)
    kind = quantization_of(pipe.transformer)
    calibrate_profilingdit(pipe, [FLUX.call(0, STEPS)])
    assert quantization_of(pipe.transformer) == kind is not None


def test_a_pipeline_with_several_denoisers_is_refused() -> None:
    case = CASES["WanPipeline-two-experts"]
    with pytest.raises(TargetError, match="this one has several: name the blocks yourself"):
        foreground_scores(case.build(), [case.call(0, STEPS)])


def test_the_probe_stops_when_a_run_raises() -> None:
    pipe = FLUX.build()

    def broken(*_: Any) -> Any:
        raise KeyError("stop")

    call = {**FLUX.call(0, STEPS), "callback_on_step_end": broken}
    with pytest.raises(KeyError):
        foreground_scores(pipe, [call])
    assert torch.equal(FLUX.render(pipe, 0, STEPS), reference("FluxPipeline", 0, STEPS))
