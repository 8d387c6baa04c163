"""Recordings as files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from searches.flux_calls import FLUX, flux_calls
from searches.recordings import same
from support.harness import reference

from diffcache.profiling.recording.record import record
from diffcache.profiling.recording.recording import Recording
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
