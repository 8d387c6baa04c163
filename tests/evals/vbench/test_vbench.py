"""VBench: its naming, a run in another interpreter, and what is said when something is missing."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from diffcache.evals.errors import EvaluationError
from diffcache.evals.evaluation import evaluate as evaluation
from diffcache.evals.evaluation.evaluate import Evaluation, evaluate
from diffcache.evals.vbench.naming import export, file_names
from diffcache.evals.vbench.running import CUSTOM, check_vbench, vbench_scores

FLICKERING = ["temporal_flickering"]

VBENCH = """
import json, os
from pathlib import Path
class VBench:
    def __init__(self, device, info, output):
        self.output = output
    def evaluate(self, videos_path, name, dimension_list, mode):
        if dimension_list == ["scene"]:
            raise FileNotFoundError("tag2text_swin_14m.pth")
        videos = sorted(os.listdir(videos_path))
        result = {d: [len(videos) / 10, [{"video_path": v, "video_results": 0.5} for v in videos]] for d in dimension_list}
        Path(self.output, f"{name}_eval_results.json").write_text(json.dumps(result))
"""

TORCH = """
device = str
class cuda:
    is_available = staticmethod(lambda: False)
"""


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    """An interpreter whose `vbench` and `torch` are stand-ins with the interface of the real ones."""
    package = tmp_path / "site" / "vbench"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(VBENCH)
    (package.parent / "torch.py").write_text(TORCH)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={package.parent} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_files_are_named_after_prompt_and_number() -> None:
    prompts = ["a cat's tail", "a cat's tail", "a dog", "a cat's tail"]
    assert file_names(prompts) == [
        "a cat's tail-0.mp4",
        "a cat's tail-1.mp4",
        "a dog-0.mp4",
        "a cat's tail-2.mp4",
    ]
    for prompt in ("either/or", "x" * 260):
        with pytest.raises(EvaluationError, match="cannot be one"):
            file_names([prompt])


def test_pictures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="judges videos"):
        export([("a cat-0.mp4", torch.zeros(3, 8, 8))], tmp_path)


def test_videos_survive_the_encoder(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg", reason="pip install imageio-ffmpeg")
    import imageio.v3 as iio

    grey = torch.linspace(0.2, 0.8, 5).view(5, 1, 1, 1).expand(5, 3, 32, 32)
    export([("a cat-1.mp4", grey)], tmp_path)
    frames = torch.from_numpy(iio.imread(tmp_path / "a cat-1.mp4", plugin="FFMPEG"))
    assert frames.shape == (5, 32, 32, 3)
    assert (frames.movedim(-1, 1) / 255 - grey).abs().max() < 0.02


def test_scores_come_from_the_other_interpreter(interpreter: Path, tmp_path: Path) -> None:
    videos = tmp_path / "videos with spaces"
    videos.mkdir()
    for name in file_names(3 * ["a cat"]):
        (videos / name).touch()
    dimensions = [*FLICKERING, "motion_smoothness"]
    check_vbench(interpreter, dimensions)
    assert vbench_scores(interpreter, dimensions, videos, CUSTOM) == dict.fromkeys(dimensions, 0.3)
    with pytest.raises(EvaluationError, match=r"scene failed \(FileNotFoundError: tag2text.*needs Tag2Text"):
        vbench_scores(interpreter, ["scene"], videos, CUSTOM)


def test_what_is_missing_is_said_before_anything_is_generated(
    interpreter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EvaluationError, match="no dimension 'beauty'"):
        check_vbench(interpreter, ["beauty"])
    with pytest.raises(EvaluationError, match="does not import"):
        check_vbench(Path(sys.executable), FLICKERING)
    for unfit in ("no python", "site"):  # none, and a folder
        asked = Evaluation("wan", samples=5, steps=2, vbench=(tmp_path / unfit, FLICKERING))
        with pytest.raises(EvaluationError, match=r"no interpreter at .*pip install vbench"):
            evaluate(asked, tmp_path / "out")
    asked = Evaluation("wan", samples=5, steps=2, vbench=(interpreter, FLICKERING))
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(EvaluationError, match="pip install imageio-ffmpeg"):
        evaluate(asked, tmp_path / "out")
    monkeypatch.undo()
    (tmp_path / "long.txt").write_text(300 * "x")
    asked = replace(asked, prompts=tmp_path / "long.txt")
    monkeypatch.setattr(evaluation, "check_encoder", lambda: None)
    with pytest.raises(EvaluationError, match="this one cannot be one"):
        evaluate(asked, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_prompt_can_have_several_samples() -> None:
    asked = Evaluation("wan", samples=7, samples_per_prompt=3).sample_prompts()
    assert asked[0] == asked[1] == asked[2] != asked[3]
    assert len(set(asked)) == 3
