"""Scripts that fit say which testbeds have prompts for that, where another is asked for without any; and what scripts can be asked."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from diffcache.evals.harness.command_line import measure_at_steps, measure_testbeds, parser_for_testbeds
from diffcache.evals.harness.results import read_result, result_path

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


WRONG = {
    "no share": ("calibrate.py", ["dit", "--method", "tune", "--compute", "0"], "compute must be a share"),
    "one sample": ("calibrate.py", ["dit", "--samples", "1"], "--samples: calibrations take two calls"),
    "no steps": ("calibrate.py", ["dit", "--steps", "0"], "--steps: '0' is no whole number above 0"),
    "no such prompts": (
        "calibrate.py",
        ["dir", "--prompts", "none.txt"],
        "cannot read prompts from none.txt",
    ),
    "nothing to compare on": (
        "search/schedule.py",
        ["dit", "--held-out", "0"],
        "--held-out: '0' is no whole",
    ),
    "nothing saved": ("search/schedule.py", ["dit", "--method", "saved"], "no search saved a schedule there"),
    "no schedule": ("search/transfer.py", ["dit", "none"], "none: neither a folder nor a hub repository"),
    "one size only": ("search/transfer.py", ["dit", "none", "--sizes", "8"], "dit draws one size only"),
}


@pytest.mark.parametrize(("script", "options", "sentence"), WRONG.values(), ids=WRONG)
def test_what_a_user_got_wrong_is_one_sentence(
    script: str,
    options: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = [] if script == "search/transfer.py" else ["--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [script, *options, *out])
    with pytest.raises(SystemExit) as refused:
        runpy.run_path(str(SCRIPTS / script), run_name="__main__")
    assert refused.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(Path(script).name)
    assert sentence in said


@pytest.mark.parametrize("script", ["calibrate.py", "search/schedule.py"])
def test_the_help_names_the_testbeds_that_have_prompts(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(SCRIPTS / script), run_name="__main__")
    assert "dit, flux, wan, sd, which have prompts of their own" in " ".join(capsys.readouterr().out.split())


@pytest.fixture
def threads() -> Iterator[None]:
    """Measurements set their number."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("samples", [None, 5])
def test_a_result_says_how_many_samples_only_where_they_can_be_chosen(
    samples: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["script", "--testbeds", "dit", "--out", str(tmp_path)])
    options = parser_for_testbeds(None, samples=samples)
    measure_testbeds(options, "made_up", lambda testbed, args: {"rows": []})
    assert read_result(result_path("made_up", "dit", tmp_path)).get("samples") == samples
    monkeypatch.setattr(sys, "argv", ["script", "--samples", "3"])
    if samples is None:
        with pytest.raises(SystemExit):
            options.parse_args()
    else:
        assert options.parse_args().samples == 3


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("asked", "numbers"), [([], [50, 20]), (["--steps", "8"], [8])])
def test_a_measurement_goes_through_numbers_of_steps(
    asked: list[str], numbers: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["script", "--testbeds", "dit", "--out", str(tmp_path), *asked])
    options = parser_for_testbeds(None, samples=5)
    measure_at_steps(
        options, "made_up", [50, 20], lambda testbed, steps, args: [{"of": (steps, args.samples)}]
    )
    assert read_result(result_path("made_up", "dit", tmp_path))["rows"] == [{"of": [n, 5]} for n in numbers]
