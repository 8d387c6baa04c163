"""VBench (arXiv 2311.17982), run in a separate environment, because it pins versions that diffcache cannot use."""

import json
import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from diffcache.evals.errors import EvaluationError

DRIVER = Path(__file__).with_name("driver.py")
STANDARD, CUSTOM = "vbench_standard", "custom_input"
FULL_INFO = "VBench_full_info.json"
"""The file with VBench's own prompts in its package."""
WEIGHTS = {
    "subject_consistency": "DINO ViT-B/16",
    "background_consistency": "CLIP ViT-B/32",
    "motion_smoothness": "AMT-S",
    "dynamic_degree": "RAFT",
    "aesthetic_quality": "CLIP ViT-L/14 and the LAION aesthetic head",
    "imaging_quality": "MUSIQ",
    "object_class": "GRiT",
    "multiple_objects": "GRiT",
    "color": "GRiT",
    "spatial_relationship": "GRiT",
    "scene": "Tag2Text",
    "human_action": "UMT-L16",
    "appearance_style": "CLIP ViT-B/32",
    "temporal_style": "ViCLIP",
    "overall_consistency": "ViCLIP",
    "temporal_flickering": "no weights",
}
"""By dimension, the weights that it loads."""


def vbench_scores(python: Path, dimensions: list[str], videos: Path, mode: str) -> dict[str, float]:
    """Scores by dimension.

    Args:
        python: the interpreter of an environment with `pip install vbench` in it.
        dimensions: of `WEIGHTS`.
        videos: folder written by `export`.
        mode: "vbench_standard" for VBench's own prompts, five videos each; "custom_input" for others.

    Raises:
        EvaluationError: a dimension could not be measured, for example because its weights are missing.
    """
    return {dimension: _score(python, videos, dimension, mode) for dimension in dimensions}


def check_vbench(python: Path, dimensions: list[str]) -> None:
    """Raises EvaluationError if there is no such interpreter or dimension, or if VBench cannot be imported there."""
    unknown = [name for name in dimensions if name not in WEIGHTS]
    if unknown:
        raise EvaluationError(f"VBench has no dimension {unknown[0]!r}; it has {', '.join(WEIGHTS)}.")
    if not (python.is_file() and os.access(python, os.X_OK)):
        raise EvaluationError(
            f"no interpreter at {python}: make one with `python -m venv`, and `pip install vbench` into it."
        )
    if _run([python, "-c", "import vbench"]).returncode:
        raise EvaluationError(f"VBench does not import in {python}: pip install vbench there.")


def _score(python: Path, videos: Path, dimension: str, mode: str) -> float:
    with TemporaryDirectory() as output:
        options = {"videos": str(videos), "output": output, "name": "run", "dimension": dimension}
        command: list[str | Path] = [python, DRIVER, "--mode", mode]
        for name, value in options.items():
            command += [f"--{name}", value]
        done = _run(command)
        result = Path(output) / "run_eval_results.json"
        if done.returncode or not result.exists():
            raise EvaluationError(_why(dimension, done.stderr))
        return float(json.loads(result.read_text())[dimension][0])


def _why(dimension: str, stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()] or ["it wrote nothing"]
    return (
        f"VBench's {dimension} failed ({lines[-1].strip()}); it needs {WEIGHTS[dimension]}, in the folder that "
        "VBENCH_CACHE_DIR names (else ~/.cache/vbench)."
    )


def _run(command: list[str | Path]) -> subprocess.CompletedProcess[str]:
    """Runs another interpreter, without the variables that would make it find this one's packages."""
    ours = ("PYTHONPATH", "PYTHONHOME")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
