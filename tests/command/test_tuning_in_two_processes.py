"""Two processes tune as one does: the same artifact, and no render made twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.saved_pipelines import OPTIONS, save_random

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
"""On a CPU `accelerate launch` starts one process, whatever number it is given."""


def tuned(model: Path, out: Path, engine: str, *launch: str) -> dict[str, bytes]:
    """The files of a result."""
    settings = {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(ROOT),
    }
    asked = ["tune", "--model", str(model), *OPTIONS["flux"], "--engine", engine, "--out", str(out)]
    samples = "8" if engine == "router" else "5"  # a router is trained on as many calls in each process
    asked += ["--speedup", "1.5", "--steps", "6", "--samples", samples]
    module = [*launch, "--module"] if launch else ["-m"]
    command = [sys.executable, *module, "diffcache.command.main", *asked]
    subprocess.run(command, env={**os.environ, **settings}, check=True)
    return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["trajectory", "dp", "router"])
def test_two_processes_find_what_one_finds(engine: str, tmp_path: Path) -> None:
    model = save_random("flux", tmp_path / "model")
    one = tuned(model, tmp_path / "one", engine)
    two = tuned(model, tmp_path / "two", engine, *LAUNCH)
    if engine != "router":  # whose gradients are averaged, which agrees to rounding
        assert two == one
        rendered = [
            {path.name for path in (tmp_path / n / "journal").glob("*.safetensors")} for n in ("one", "two")
        ]
        assert rendered[0] == rendered[1]
    assert two.keys() == one.keys()
