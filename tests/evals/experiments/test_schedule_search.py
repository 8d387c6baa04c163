"""The search from its command line on a testbed: what it saves is compared again as it was."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from diffcache import Schedule

SCRIPT = Path(__file__).parents[3] / "scripts" / "search" / "schedule.py"
COMMON = ["dit", "--steps", "5", "--compute", "0.6", "--samples", "1", "--held-out", "2"]


def rows(out: Path, *options: str) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patched:
        arguments = [*COMMON, "--out", out, "--json", out / "rows.json", *options]
        patched.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
        runpy.run_path(str(SCRIPT), run_name="__main__")
    found = json.loads((out / "rows.json").read_text())
    return {row.pop("name"): row for row in found["rows"]}


def test_what_a_search_saved_is_compared_again_with_what_it_had_then(tmp_path: Path) -> None:
    searched = rows(tmp_path, "--hindsight")
    assert Schedule.from_pretrained(tmp_path / "dp-shared-60").predictor["hindsight"] is True
    assert searched["dp, shared, 60%"]["ticks"] == 3
    assert searched["dp, shared, 60%"] != searched["uniform hold, hindsight, every 2"]
    again = rows(tmp_path, "--method", "saved")
    assert again["dp-shared-60"] == searched["dp, shared, 60%"]
    assert "uniform hold, hindsight, every 2" not in again


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--hindsight", "--sites", "sub-layer"], "is for whole denoisers"),
        (["--confirm", "9", "--quality", "kid"], "by PSNR"),
        (["--confirm", "9"], "is for --method evolution"),
        (["--method", "evolution", "--candidates", "9", "--confirm", "4"], "needs at least 5 samples"),
        (
            ["--method", "evolution", "--candidates", "9", "--begin", "outputs"],
            "--begin is for --method router",
        ),
        (["--method", "evolution"], "needs --generations, --candidates or --minutes"),
        (["--method", "router"], "needs sites inside the denoiser: --sites sub-layer"),
        (["--compute", "0.501", "0.504"], "saved under one name"),
        (["--quality", "clip"], "needs --clip"),
    ],
)
def test_what_does_not_go_together_is_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        rows(tmp_path, *options)
    assert message in capsys.readouterr().err


def test_what_dynamic_programming_found_is_saved_though_what_follows_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        rows(tmp_path, "--method", "router", "--sites", "block", "--runs", "1")
    assert refused.value.code == 2
    assert "is no sub-layer" in capsys.readouterr().err
    assert Schedule.from_pretrained(tmp_path / "dp-shared-60").num_ticks == 5


def test_too_few_prompts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a cube\n\n" * 12)  # one that differs
    asked = ["a-model", "--prompts", prompts, "--out", tmp_path]
    asked += ["--method", "evolution", "--generations", "1", "--confirm", "5"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, asked)])
    with pytest.raises(SystemExit, match="at least 12 different prompts"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
