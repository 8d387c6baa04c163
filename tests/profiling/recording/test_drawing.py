"""Recordings as pictures."""

from __future__ import annotations

from pathlib import Path

from support.searches.flux_calls import FLUX, flux_calls

from diffcache.profiling.recording.drawing import draw
from diffcache.profiling.recording.record import record


def test_a_recording_is_drawn(tmp_path: Path) -> None:
    path = draw(record(FLUX.build(), flux_calls(6, 1), sites="block"), tmp_path / "recording.png")
    assert path.stat().st_size > 10_000
