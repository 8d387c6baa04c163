"""A search that was killed continues: nothing is rendered again, and the result is the same."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.searches.flux_calls import FLUX, flux_calls

from diffcache import tune
from diffcache.profiling.tuning import searched
from diffcache.profiling.tuning.engines import ENGINES

STEPS = 6
LONGER = {"teacache": 8, "dpcache": 10}


def counted(kill_at: int | None = None) -> tuple[Any, list[int]]:
    """A pipeline that counts its calls, and perhaps kills its process when one begins."""
    pipe, calls = FLUX.build(), [0]

    class Counted(type(pipe)):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if calls[0] == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            calls[0] += 1
            return super().__call__(*args, **kwargs)

    pipe.__class__ = Counted
    return pipe, calls


def found(pipe: Any, engine: str, folder: Path) -> dict[str, bytes]:
    calls = flux_calls(LONGER.get(engine, STEPS), 4)
    tune(pipe, calls, speedup=1.5, engine=engine, folder=folder)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_search_renders_nothing_twice(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searched, "CANDIDATES", 25)
    monkeypatch.setattr(searched, "RUNS", 3)
    pipe, calls = counted()
    whole = found(pipe, engine, tmp_path / "whole")
    total = calls[0]
    for kill_at in (1, total // 2, total - 2):
        folder = tmp_path / str(kill_at)
        child = os.fork()
        if not child:
            found(counted(kill_at)[0], engine, folder)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGKILL
        pipe, calls = counted()
        assert found(pipe, engine, folder) == whole
        assert calls[0] == total - kill_at
