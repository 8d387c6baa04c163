"""Scripts that fit say which testbeds have prompts for that, where another is asked for without any."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("calibrate.py", ["--method", "magcache"]),
        ("search/schedule.py", ["--method", "dp"]),
    ],
)
def test_a_testbed_without_prompts_of_its_own_needs_some(
    script: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [script, "emoji", *options, "--out", str(tmp_path)])
    with pytest.raises(
        SystemExit, match=r"emoji has no prompts of its own.* dit, flux, wan, sd have: --prompts"
    ):
        runpy.run_path(str(SCRIPTS / script), run_name="__main__")


@pytest.mark.parametrize("script", ["calibrate.py", "search/schedule.py"])
def test_the_help_names_the_testbeds_that_have_prompts(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(SCRIPTS / script), run_name="__main__")
    assert "dit, flux, wan, sd, which have prompts of their own" in " ".join(capsys.readouterr().out.split())
