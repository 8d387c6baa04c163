"""Every verb runs on a pipeline that a user has saved; what the user gets wrong is one sentence and status 2."""

from __future__ import annotations

import errno
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.saved_pipelines import OPTIONS, save_random

from diffcache import CacheConfig, ConfigError, EasyCacheConfig, Schedule, compare
from diffcache.command.main import VERBS, main
from diffcache.command.tune import command as tune_verb
from diffcache.command.wording import in_words_of
from diffcache.profiling.calibrating.corrections import with_corrections
from diffcache.profiling.tuning.artifact import TUNE
from diffcache.profiling.tuning.engines import ENGINES
from diffcache.recipes.schedule_fields import LAST_STEP
from diffcache.schedulers.schedule import Schedule as Made
from diffcache.trajectory.process import MODELLED


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options of a saved pipeline."""
    return ["--model", str(save_random("flux", tmp_path_factory.mktemp("flux"))), *OPTIONS["flux"]]


@pytest.fixture(scope="module")
def tuned(flux: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that `tune` has written."""
    out = tmp_path_factory.mktemp("tuned")
    assert main(["tune", *flux, "--speedup", "2", "--samples", "3", "--steps", "6", "--out", str(out)]) == 0
    return out


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command prints, which has to succeed."""
    assert main(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"diffcache {verb}" in said(capsys, verb, "--help")


def test_the_help_names_every_verb_and_completion_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(capsys, "--help")
    assert all(f"  {verb} " in shown for verb in VERBS)
    assert "_DIFFCACHE_COMPLETE=bash_complete" in said(capsys, "--completion", "bash")


def test_inspect_and_plan(flux: list[str], tuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "transformer_blocks.0" in said(capsys, "inspect", *flux)
    assert "computes" in said(capsys, "plan", "easycache", *flux, "--steps", "6")
    assert "3 of 6 ticks" in said(capsys, "plan", str(tuned), *flux, "--steps", "6")


def test_what_tune_wrote_loads_and_is_shown(tuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Schedule.from_pretrained(tuned).measured["compute_fraction"] == 0.5
    shown = said(capsys, "show", str(tuned))
    assert "schedule for transformer (FluxTransformer2DModel)" in shown
    assert "compute: 50.0%" in shown
    assert "on the prompts to verify: 1 samples" in shown
    assert "as many plain steps: median" in shown
    figures = re.findall(r"(?:median|worst|at least|than) -?[\d.]+\d(.{3})", shown)
    assert figures
    assert set(figures) == {" dB"}
    assert "not shown: " in shown
    assert "guidance: scale of the passes 1" in shown
    assert all(len(line) < 300 for line in shown.splitlines())
    expected = Schedule.from_pretrained(tuned).expected_error
    assert f"expected error of the result: {expected:.2%}" in shown


def test_the_corrections_of_a_schedule_are_named(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = with_corrections(Schedule.from_pretrained(tuned), {})
    plain.save_pretrained(tmp_path)
    assert "corrections" not in said(capsys, "show", str(tmp_path))
    with_corrections(plain, {LAST_STEP: torch.zeros(7)}).save_pretrained(tmp_path)
    assert "corrections: last_step" in said(capsys, "show", str(tmp_path))


def test_what_a_plan_was_made_with_is_shown(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And so whether resample=True makes it anew."""
    plan = {
        "name": "conditional",
        "of": MODELLED,
        "covariance": [[1.0]],
        "between": [[1.0]],
        "noise": 0.1,
        "window": 4,
    }
    for more, said_of_it in (
        ({}, "for this run only"),
        ({"angles": [1.0], "response": None}, "by what was measured"),
    ):
        replace(Schedule.from_pretrained(tuned), predictor=plan | more).save_pretrained(tmp_path)
        assert said_of_it in said(capsys, "show", str(tmp_path))


def test_figures_of_tune_that_are_not_whole_are_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text, sentence in (
        ("[]", "producer: missing"),
        ('{"producer": {}, "measured": {}}', "compute_fraction: missing"),
    ):
        (tmp_path / TUNE).write_text(text)
        assert main(["show", str(tmp_path)]) == 2
        assert sentence in capsys.readouterr().err


def test_tune_asks_for_the_weights_of_its_objective_before_it_renders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    out = tmp_path / "out"
    assert main(["tune", "--model", "dit", "--speedup", "2", "--objective", "lpips", "--out", str(out)]) == 2
    assert f"no weights of AlexNet at {tmp_path}" in capsys.readouterr().err.splitlines()[-1]
    assert not out.exists()


def test_compare_has_the_controls_at_the_same_compute(
    flux: list[str], tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.json"
    options = ["--steps", "6", "--samples", "2", "--batch", "2", "--json", str(rows)]
    shown = said(capsys, "compare", str(tuned), "uniform", *flux, *options)
    assert f"| {tuned} | 3/6 | 50% |" in shown
    assert "| 3 even ticks | 3/6 | 50% |" in shown
    assert "| 3 steps, own | 3/6 | 50% |" in shown
    assert json.loads(rows.read_text())["rows"][0]["compute"] == 0.5


def test_evaluate_and_demo(
    flux: list[str], tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "evaluated"
    options = ["--steps", "6", "--samples", "2", "--out", str(out)]
    assert "report.html" in said(capsys, "evaluate", str(tuned), *flux, *options)
    assert "evaluation of schedule on" in said(capsys, "show", str(out))
    options = ["--steps", "4", "--samples", "1", "--rounds", "1", "--out", str(tmp_path)]
    assert "| full run | 4/4 |" in said(capsys, "demo", *flux, *options)
    assert (tmp_path / "pictures.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_what_every_engine_writes_loads(engine: str, flux: list[str], tmp_path: Path) -> None:
    options = ["--speedup", "1.3", "--samples", "3", "--steps", "8", "--out", str(tmp_path)]
    assert main(["tune", *flux, "--engine", engine, *options]) == 0
    assert main(["plan", str(tmp_path), *flux, "--steps", "8"]) == 0
    if (tmp_path / "cache_config.json").exists():
        assert CacheConfig.from_pretrained(tmp_path) is not None
    else:
        assert "guidance_scale" in Made.from_pretrained(tmp_path).predictor


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_a_folder_that_cannot_be_written_to_is_one_sentence(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: str) -> str:
        raise OSError(number, "not here", "outputs")

    monkeypatch.setattr("diffcache.command.show.show", refuse)
    assert main(["show", "outputs"]) == 2
    assert "not here: 'outputs': choose another folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fly"], "No such command 'fly'"),
        (["plan", "easycach"], "there is no method 'easycach': did you mean 'easycache'?"),
        (["plan", "--model", "nowhere/at-all"], "no pipeline 'nowhere/at-all'"),
        (["plan", "--size", "big"], "'big' is no size: give 1024x768"),
        (["plan", "--call", "seven"], "'seven' is no assignment"),
        (["plan", "--call", "nonsense=1"], "takes no nonsense="),
        (["plan", "--call", "guidance_scale=strong"], "guidance_scale=strong: give a number."),
        (["demo", "--batch", "2"], "No such option '--batch'."),
        (["plan", "--frames", "8"], "takes no num_frames="),
        (["plan", "--offload", "model"], "--offload model needs a GPU"),
        (
            ["plan", "--model", "sd", "--size", "63"],
            "the pipeline refuses this call: `height` and `width` have to be",
        ),
        (
            ["plan", "--call", "num_images_per_prompt=2"],
            "the pipeline refuses this call: You have passed a list of generators of length 1",
        ),
        (["plan", "--call", "latents=none of these"], "the pipeline refuses this call: 'str' object has no"),
        (["demo", "--call", "output_type=latent"], "output_type=latent: pictures are drawn and compared"),
        (["plan", "--guidance", "nan"], "Invalid value for '--guidance': nan is not finite"),
        (["plan", "--seed", str(2**63)], "is no seed: give one of 64 bits"),
        (["plan", "--model", "kontext", "--prompt", "red"], "'red' edits none of the references"),
        (["plan", "--option", "nonsense=1"], "has no option 'nonsense'"),
        (
            ["tune", "--out", "{tmp}"],
            "tune needs either --speedup or --quality (or --front): pass one of them",
        ),
        (["tune", "--out", "{tmp}", "--speedup", "0"], "speedup must be a number >= 1"),
        (
            ["tune", "--out", "{tmp}", "--speedup", "2", "--at-least", "90%"],
            "--at-least is the share of samples",
        ),
        (["tune", "--out", "{tmp}", "--quality", "30", "--at-least", "1"], "--at-least 1.0: give a share"),
        (["tune", "--out", "{tmp}", "--speedup", "2", "--samples", "2"], "2 is not in the range x>=3"),
        (
            ["tune", "--out", "{tmp}", "--quality", "30", "--at-least", "170%"],
            "--at-least 1.7: give a share above 0 and below 1",
        ),
        (
            ["tune", "--out", "{tmp}", "--quality", "30", "--objective", "taste"],
            "--objective taste: choose psnr",
        ),
        (["tune", "--out", "", "--speedup", "2"], "an empty name is no folder"),
        (["show", "{tmp}"], "there is nothing that diffcache has written"),
        (["evaluate", "--prompt", "a fox"], "pass a file as --prompts"),
        (["compare", "--steps", "1"], "a run of one step has nothing to cache"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_a_user_gets_wrong_is_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument.format(tmp=tmp_path) for argument in arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("diffcache: ")
    assert sentence in lines[-1]
    assert "Traceback" not in "".join(lines)


def test_another_number_of_steps_is_asked_for_as_an_option(
    flux: list[str], tuned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["plan", str(tuned), *flux, "--steps", "7"]
    assert main(asked) == 2
    assert "this run 7: pass --option resample=True, or record one" in capsys.readouterr().err
    assert "of 7 ticks" in said(capsys, *asked, "--option", "resample=True")


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("pass quality= as well", "pass --quality as well"),
        ("or front=True.", "or --front."),
        ("speedup=2: or accelerate(pipe, speedup=2)", "--speedup 2: or accelerate(pipe, speedup=2)"),
        ("folder='a' is a file", "--out 'a' is a file"),
        ("tune() takes no sed=: its arguments are seed", "tune takes no sed=: its arguments are seed"),
        ("raise it: threshold=0.1", "raise it: threshold=0.1"),  # tune has no --option
    ],
)
def test_a_sentence_of_pythons_is_in_the_words_of_the_verb(sentence: str, words: str) -> None:
    assert in_words_of(tune_verb, "tune", sentence) == words


@pytest.mark.parametrize(
    ("calls", "methods", "sentence"),
    [
        ([{"num_inference_steps": 2}], ["easycache"], "configs by name"),
        ([{"num_inference_steps": 2}], {"a": "easycache"}, "configs by name"),
        ([], {"a": EasyCacheConfig()}, "calls that say num_inference_steps"),
        ([{"prompt": "a fox"}], {"a": EasyCacheConfig()}, "calls that say num_inference_steps"),
    ],
)
def test_compare_refuses_before_it_renders(calls: Any, methods: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        compare(None, calls, methods)
