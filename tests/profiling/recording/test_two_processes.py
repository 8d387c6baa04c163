"""Files that two processes write at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.searches.flux_calls import FLUX, flux_calls

from diffcache.profiling.recording.record import record
from diffcache.profiling.recording.recording import Recording
from diffcache.profiling.searching.checkpoints import claim


def recording_of(folder: Path) -> Callable[[], object]:
    recording = record(FLUX.build(), flux_calls(4))
    return lambda: recording.save(folder)


def claim_of(folder: Path) -> Callable[[], object]:
    return lambda: claim(folder / "about.json", {"seed": 1})


@pytest.mark.parametrize("make", [recording_of, claim_of])
def test_another_process_that_writes_at_the_same_time_disturbs_nothing(
    make: Callable[[Path], Callable[[], object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, write_text, others = make(tmp_path), Path.write_text, list[int]()

    def interrupted(path: Path, text: str) -> int:
        count = write_text(path, text)
        if not others:
            others.append(1)
            with monkeypatch.context() as other:
                other.setattr(os, "getpid", lambda: 0)
                write()
        return count

    monkeypatch.setattr(Path, "write_text", interrupted)
    write()
    assert others
    write()
    assert not list(tmp_path.glob("*.part"))
    if make is recording_of:
        Recording.load(tmp_path)
