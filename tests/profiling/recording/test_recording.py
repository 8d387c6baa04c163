"""Recordings as files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.harness import reference
from support.searches.flux_calls import FLUX, flux_calls
from support.searches.recordings import same
from zoo.pipelines import CASES

from diffcache import accelerate, report
from diffcache.profiling.calibrating.ertacache import static_schedule
from diffcache.profiling.recording.record import record, record_closed_loop, recorded
from diffcache.profiling.recording.recording import Recording
from diffcache.profiling.searching.space import Space
from diffcache.schedulers.errors import ScheduleError

STEPS = 6


def test_a_recording_is_saved_loaded_and_checked(tmp_path: Path) -> None:
    pipe = FLUX.build()
    recording = record(pipe, flux_calls(STEPS))
    assert torch.equal(FLUX.render(pipe, 0, STEPS), reference("FluxPipeline", 0, STEPS))
    again = Recording.load(recording.save(tmp_path))
    assert again.models == recording.models
    assert same(again, recording)
    assert again.leading.flops == recording.leading.flops
    (tmp_path / "recording.json").write_text("{")
    with pytest.raises(ScheduleError, match="damaged"):
        Recording.load(tmp_path)


def test_schedules_of_a_recording_say_at_which_scale_of_guidance_they_were_made(tmp_path: Path) -> None:
    sd = CASES["StableDiffusionPipeline"]
    pipe, calls = sd.build(), [{**sd.call(0, STEPS), "guidance_scale": 3.0}]
    recording = Recording.load(recorded(pipe, calls).save(tmp_path))
    held = static_schedule(recording, [0, 2, 4])
    along = static_schedule(record_closed_loop(pipe, calls, held), [0, 2, 4])
    space = Space(recording)
    searched = space.schedule(space.together([0, 2, 4]), {})
    for schedule in (held, along, searched):
        accelerate(pipe, schedule)
        for scale, told in ((3.0, False), (7.0, True)):
            sd.render(pipe, 0, STEPS, guidance_scale=scale)
            assert told is any("made with a guidance scale of 3" in note for note in report(pipe).notes)


def test_a_recording_that_does_not_say_its_scale_of_guidance_is_read() -> None:
    recording = record(FLUX.build(), flux_calls(STEPS))
    older = {name: its for name, its in recording.as_json().items() if name != "guidance_scale"}
    again = Recording.of_json(older, recording.tensors())
    assert same(again, recording)
    assert "guidance_scale" not in again.with_scale({"name": "hold"})
