"""Recording a pipeline: what its sites cost, and that an interrupted recording ends like one that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FlowMatchHeunDiscreteScheduler
from support.searches.flux_calls import FLUX, flux_calls
from support.searches.recordings import same
from support.toys import by_embeds, toy_pipeline
from zoo.pipelines import CASES

from diffcache.evals.race.flops import counted_flops
from diffcache.profiling.recording.record import record, recorded
from diffcache.profiling.recording.recording import Recording
from diffcache.schedulers.errors import ConfigError, ScheduleError

STEPS = 6


def test_a_recording_without_calls_is_refused() -> None:
    with pytest.raises(ConfigError, match="calls: give at least one"):
        record(FLUX.build(), [])


@pytest.mark.parametrize(("option", "value"), [("lag", 0), ("lag", 1.5), ("metric", "l3")])
def test_a_comparison_that_there_is_not_is_refused(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{option}={value!r}"):
        record(FLUX.build(), flux_calls(STEPS, 1), **{option: value})


@pytest.mark.parametrize("steps", [(4, 6), (6, 4)])
def test_calls_with_different_numbers_of_steps_are_not_averaged(steps: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="numbers of steps differ"):
        record(FLUX.build(), [FLUX.call(seed, count) for seed, count in enumerate(steps)])


def test_calls_with_different_guidance_passes_are_not_averaged() -> None:
    wan = CASES["WanPipeline"]
    with pytest.raises(ConfigError, match="guidance passes differ"):
        recorded(wan.build(), [wan.call(0, 3), {**wan.call(1, 3), "guidance_scale": 1.0}])


def test_the_cost_of_each_site_is_measured() -> None:
    recording = record(FLUX.build(), flux_calls(STEPS, 1), sites="sub-layer")
    assert {site.kind for site in recording.sites.values()} > {"feed-forward"}
    assert all(curve.flops > 0 for curve in recording.curves.values())
    ticks = torch.stack([curve.seconds for curve in recording.curves.values()])
    assert (ticks[:, 1:] > 0).all()
    assert ticks[:, 0].isnan().all()  # sites inside are not known yet, and their operations are traced
    pipe = FLUX.build()
    with counted_flops(pipe) as plain:
        FLUX.render(pipe, 0, STEPS)
    whole = record(pipe, flux_calls(STEPS, 1))
    assert sum(curve.flops for curve in whole.curves.values()) * STEPS == plain.total
    assert whole.leading.flops > sum(curve.flops for curve in recording.curves.values())
    assert whole.table().count("\n") == 2


class Killed(Exception):
    """Raised in the middle of a run."""


def test_an_interrupted_recording_ends_like_one_that_was_not(tmp_path: Path) -> None:
    pipe, alive = FLUX.build(), False

    def die(pipe: Any, step: int, time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        if step == 2 and not alive:
            raise Killed
        return tensors

    asked = [*flux_calls(STEPS), {**FLUX.call(2, STEPS), "callback_on_step_end": die}]
    for done in (0, 2):  # from the start, and where it stopped
        assert done == 0 or Recording.load(tmp_path / "two").runs == done
        with pytest.raises(Killed):
            record(pipe, asked, folder=tmp_path / "two")
    alive = True
    continued = record(pipe, asked, folder=tmp_path / "two")
    assert same(continued, record(pipe, asked))
    assert same(record(pipe, asked, folder=tmp_path / "two"), continued)  # nothing is left to do
    assert len(list((tmp_path / "two").iterdir())) == 2
    with pytest.raises(ScheduleError, match="another hash"):
        record(pipe, [*asked[:2], FLUX.call(3, STEPS)], folder=tmp_path / "two")
    other = {**asked[2], "prompt_embeds": asked[2]["prompt_embeds"] + 1}
    with pytest.raises(ScheduleError, match="another hash"):
        record(pipe, [*asked[:2], other], folder=tmp_path / "two")
    with pytest.raises(ScheduleError, match="another networks"):
        record(CASES["WanPipeline"].build(), asked, folder=tmp_path / "two")
    pipe.scheduler = FlowMatchHeunDiscreteScheduler()
    with pytest.raises(ScheduleError, match="another noise scheduler"):
        record(pipe, asked, folder=tmp_path / "two")


def test_a_folder_of_other_weights_or_other_noise_levels_is_refused(tmp_path: Path) -> None:
    pipe = FLUX.build()
    record(pipe, flux_calls(STEPS, 1), folder=tmp_path)
    own = pipe.scheduler
    pipe.scheduler = type(own).from_config(own.config, shift=own.config.shift + 1)
    with pytest.raises(ScheduleError, match="another noise schedulers: choose another folder"):
        record(pipe, flux_calls(STEPS, 1), folder=tmp_path)
    pipe.scheduler = own
    with torch.no_grad():
        next(pipe.transformer.parameters()).mul_(2)
    with pytest.raises(ScheduleError, match="another networks: choose another folder"):
        record(pipe, flux_calls(STEPS, 1), folder=tmp_path)


def test_a_recording_needs_one_denoising_loop_for_each_call() -> None:
    pipe = toy_pipeline()
    with pytest.raises(ValueError, match="one denoising loop"):
        record(pipe, [{"embeds": by_embeds(), "loops": 2}])
