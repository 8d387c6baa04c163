"""Evaluations: interrupted or split over processes they give the same figures, and nothing partial looks whole."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.data_uris import frames

from diffcache import ScheduleError, accelerate, report
from diffcache.command.main import main
from diffcache.evals.errors import EvaluationError
from diffcache.evals.evaluation.evaluate import Evaluation, evaluate
from diffcache.evals.evaluation.figures import CACHED, FULL
from diffcache.evals.evaluation.names import PAGE, RESULT
from diffcache.evals.evaluation.sample_folder import check_manifest
from diffcache.evals.harness.pipelines import Source
from diffcache.evals.testbeds import zoo
from diffcache.evals.webpage.page import write_page

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "evaluate.py"


@pytest.mark.parametrize("model", ["flux", "wan"])
def test_an_evaluation_and_its_page(model: str, tmp_path: Path) -> None:
    asked = Evaluation(model, options={"speedup": 2.0}, samples=5, steps=6, batch_size=3)
    result = evaluate(asked, tmp_path)
    assert result is not None
    assert json.loads((tmp_path / RESULT).read_text()) == json.loads(json.dumps(result))
    assert [one["index"] for one in result["per_sample"]] == list(range(5))
    assert 0 < result["cost"]["cached"]["compute"] < 1 == result["cost"]["full"]["compute"]
    assert result["distances"]["extractor"] == "testbed classifier"
    assert ("flicker_cached" in result["fidelity_and_alignment"]) == (model == "wan")

    page = write_page(result, tmp_path).read_text()
    outside = re.findall(r'(?:src|href)="(?!data:|#)[^"]*"|url\((?!#)[^)]*\)|@import', page)
    assert not outside, outside
    assert page.count('type="range"') == 5
    assert f"{result['fidelity_and_alignment']['psnr']['median']:.1f} dB" in page
    if model == "wan":
        encoded = re.findall(r"data:image/png;base64,([^\"]+)", page)[0]
        assert frames(encoded) == 9


def test_a_folder_of_another_method_says_what_differs_alone(tmp_path: Path) -> None:
    options = {"interval": 2, "window": None, "angles": [0.1] * 99}
    kept = {"method": "uniform", "options": options, "config": "ab"}
    check_manifest(tmp_path, kept)
    others = {
        r"interval = 2, not 3 and window = None, not 4: choose": {**options, "interval": 3, "window": 4},
        r"angles = \[(0\.1, )+.{,4}\.\.\., not None: choose": {"interval": 2, "window": None},
    }
    for sentence, changed in others.items():
        with pytest.raises(EvaluationError, match=f"holds samples with {sentence}"):
            check_manifest(tmp_path, {**kept, "options": changed, "config": "cd"})
    with pytest.raises(EvaluationError, match="holds samples with method = uniform, not even: choose"):
        check_manifest(tmp_path, {"method": "even", "options": {"speedup": 2}, "config": "cd"})


def test_a_verb_that_is_asked_for_few_samples_gives_no_distance(tmp_path: Path) -> None:
    assert main(["evaluate", "--model", "dit", "--samples", "2", "--steps", "3", "--out", str(tmp_path)]) == 0
    (found,) = tmp_path.rglob(RESULT)
    assert json.loads(found.read_text())["distances"] == {}


def test_samples_of_weights_that_have_changed_since_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Evaluation("dit", "uniform", samples=1, steps=2, extractor=None)
    pipe = asked.loading.load(torch.device("cpu"))
    monkeypatch.setattr(Source, "load", lambda *_: pipe)
    evaluate(asked, tmp_path)
    evaluate(asked, tmp_path)  # nothing has changed
    with torch.no_grad():
        next(pipe.transformer.parameters()).mul_(2)
    with pytest.raises(ScheduleError, match="belongs to an evaluation with another networks: choose"):
        evaluate(asked, tmp_path)


def test_a_clip_of_one_frame_has_no_flickering(tmp_path: Path) -> None:
    asked = ["--model", "wan", "--frames", "1", "--samples", "1", "--steps", "2", "--out", str(tmp_path)]
    assert main(["evaluate", *asked]) == 0
    assert "NaN" not in (tmp_path / RESULT).read_text()


@pytest.mark.parametrize(
    ("option", "needed"), [(["--clip-weights", "openai"], "--clip"), (["--dimensions", "color"], "--vbench")]
)
def test_an_option_without_the_one_that_it_belongs_to_is_refused(
    option: list[str], needed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            ["evaluate", "--model", "dit", "--samples", "1", "--steps", "2", "--out", str(tmp_path), *option]
        )
        == 2
    )
    assert f"{needed}," in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["[1]", "{", '"a"'])
def test_somebody_elses_manifest_is_refused_and_stays(text: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(EvaluationError, match="not of an evaluation, or damaged: choose another folder"):
        evaluate(Evaluation("dit", samples=1, steps=2), tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == [text]


def test_somebody_elses_page_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / PAGE).write_text("mine")
    with pytest.raises(EvaluationError, match=f"{PAGE} is not of an evaluation, and would be written over"):
        evaluate(Evaluation("dit", samples=1, steps=2), tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_the_same_sample_whatever_the_number_of_samples(tmp_path: Path) -> None:
    few = evaluate(
        Evaluation("dit", "uniform", samples=5, samples_per_prompt=6, steps=5, batch_size=1), tmp_path / "few"
    )
    more = evaluate(
        Evaluation("dit", "uniform", samples=6, samples_per_prompt=6, steps=5, batch_size=1),
        tmp_path / "more",
    )
    assert few is not None
    assert more is not None
    assert few["per_sample"] == more["per_sample"][:5]
    assert len({one["psnr"] for one in more["per_sample"]}) == 6  # one prompt, six seeds


def test_a_method_that_was_refused_does_not_bind_the_folder(tmp_path: Path) -> None:
    pipe, out = accelerate(zoo.load("dit"), "uniform"), tmp_path / "out"
    pipe(**zoo.call_for("dit", zoo.prompts("dit", 1), [0], 4))
    report(pipe).to_schedule().save_pretrained(tmp_path / "schedule")

    def asked(method: str, steps: int = 6) -> Evaluation:
        return Evaluation("dit", method, samples=3, steps=steps, batch_size=3, extractor=None)

    with pytest.raises(ScheduleError, match="4 ticks and this run 6"):
        evaluate(asked(str(tmp_path / "schedule")), out)
    full = out / FULL / "samples" / "000000.png"
    rendered = full.stat().st_mtime_ns
    with pytest.raises(EvaluationError, match="holds samples with steps = 6, not 5"):
        evaluate(asked("uniform", steps=5), out)
    assert evaluate(asked("uniform"), out) is not None
    assert full.stat().st_mtime_ns == rendered
    with pytest.raises(EvaluationError, match="holds samples with"):
        evaluate(asked("even"), out)
    (out / FULL / "batches" / "000000.json").unlink()
    (out / CACHED / "batches" / "000000.json").unlink()
    assert evaluate(asked("even", steps=5), out) is not None


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompts", "{tmp}/none.txt"], "does not exist"),
        (["--reference", "{tmp}/empty"], "has no pictures"),
        (["--extractor", "{tmp}/weights.pth"], "no Inception weights at"),
        (["nonsense"], "there is no method 'nonsense'"),
        (["--clip", "ViT-B-32", "--clip-weights", "{tmp}/clip.pt"], "no CLIP weights at"),
        (["--samples", "0"], "0 is not in the range x>=1"),
        (["--batch", "0"], "0 is not in the range x>=1"),
        (["--prompts", "{tmp}/words.txt"], "dit draws classes, not 'a cat'"),
        (["--out", "{tmp}/words.txt"], "is a file"),
        (["--model", "{tmp}/empty", "--prompts", "{tmp}/words.txt"], "no pipeline"),
    ],
)
def test_what_is_missing_is_said_in_a_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "words.txt").write_text("a cat")
    out = tmp_path / "out"
    out.mkdir()
    given = ["--out", str(out), *(argument.format(tmp=tmp_path) for argument in arguments)]
    assert (
        main(["evaluate", "--model", "dit", *given]) == 2
    )  # in this process: starting another for each costs seconds
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith("diffcache: ")
    assert message in line
    assert not (out / RESULT).exists()


def test_an_earlier_report_is_gone_once_generation_begins(tmp_path: Path) -> None:
    for stale in (RESULT, PAGE):
        (tmp_path / stale).write_text("of an earlier evaluation")
    with pytest.raises(EvaluationError, match="too few"):
        evaluate(Evaluation("dit", samples=2, steps=2), tmp_path)
    assert not (tmp_path / RESULT).exists()
    assert not (tmp_path / PAGE).exists()


def test_missing_weights_of_a_testbed_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "FOLDER", tmp_path)
    with pytest.raises(
        EvaluationError, match="the weights of the testbed 'dit' come with the repository only"
    ):
        evaluate(Evaluation("dit", samples=5, steps=2), tmp_path / "out")


@pytest.mark.slow
def test_two_processes_one_killed_then_resumed_equal_one_process(tmp_path: Path) -> None:
    arguments = ["--model", "dit", "--samples", "24", "--steps", "10", "--batch", "2", "--seed", "0"]
    whole, split = tmp_path / "one", tmp_path / "two"
    assert run(*arguments, "--out", whole).returncode == 0
    # Its launcher of several processes, which without GPUs are two on the CPU; `--cpu` would start one.
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--main_process_port", "0", str(SCRIPT), *arguments, "--out", str(split)]

    first = subprocess.Popen(launch, env=environment(), start_new_session=True)
    deadline = time.monotonic() + 120
    while len(list(split.glob("full/batches/0*.json"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    done = {path: path.stat().st_mtime_ns for path in split.glob("*/batches/0*.json")}
    finished = [i for path in done for i in json.loads(path.read_text())["samples"]]
    samples = {p: p.stat().st_mtime_ns for p in split.glob("full/samples/*.png") if int(p.stem) in finished}
    assert 3 <= len(done) < 24, "killed too early or too late"
    assert not (split / RESULT).exists()

    assert subprocess.run(launch, env=environment(), check=False).returncode == 0
    assert all(path.stat().st_mtime_ns == at for path, at in {**done, **samples}.items())
    assert {p.stem for p in split.glob("cached/samples/*.png")} == {f"{i:06d}" for i in range(24)}
    one, two = (json.loads((folder / RESULT).read_text()) for folder in (whole, split))
    assert (one["header"]["processes"], two["header"]["processes"]) == (1, 2)
    for name in ("per_sample", "fidelity_and_alignment", "distances"):
        assert _numbers(two[name]) == pytest.approx(_numbers(one[name]), abs=1e-6)


def _numbers(found: Any) -> list[float]:
    if isinstance(found, dict):
        return [number for value in found.values() for number in _numbers(value)]
    if isinstance(found, list):
        return [number for value in found for number in _numbers(value)]
    return [float(found)] if isinstance(found, (int, float)) else []
