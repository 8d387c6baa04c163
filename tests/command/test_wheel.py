"""The wheel, in an environment of its own and outside of the checkout: every verb runs on pipelines that users saved in bfloat16."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from support.saved_pipelines import OPTIONS, save_random

ROOT = Path(__file__).resolve().parents[2]

DRIVER = """
import sys
import diffcache
from diffcache.command.main import main

assert diffcache.__file__.startswith(sys.prefix), diffcache.__file__
model, *options = sys.argv[1:]
given = ["--model", model, *options, "--steps", "4"]
verbs = (
    ["inspect", *given],
    ["plan", *given],
    ["tune", *given, "--speedup", "2", "--samples", "3", "--out", "tuned"],
    ["show", "tuned"],
    ["plan", "tuned", *given],
    ["compare", "tuned", *given, "--samples", "1"],
    ["evaluate", "tuned", *given, "--samples", "2", "--out", "evaluated"],
    ["demo", "tuned", *given, "--samples", "1", "--rounds", "1", "--out", "demo"],
    ["plan", *given, "--dtype", "bfloat16"],
    ["plan", *given, "--quantize", "int8"],
)
for arguments in verbs:
    print("diffcache", *arguments, flush=True)
    assert main(arguments) == 0, arguments
assert main(["demo"]) == 2  # the testbeds come with the repository only
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel alone, which sees the other packages of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "-q"]
    subprocess.run([*pip, "wheel", str(ROOT), "--no-deps", "-w", str(folder)], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", str(wheel)], check=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    packages = Path(sysconfig.get_path("purelib"))
    lines = [str(packages), *(f"import {shim.stem}" for shim in packages.glob("_torchvision_on_cpu.py"))]
    (site / "packages.pth").write_text("\n".join(lines) + "\n")
    return python


def ran(*command: str | Path, folder: Path) -> str:
    """What a command prints that runs in a folder outside of the checkout."""
    settings = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env={**kept, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", OPTIONS)
def test_every_verb_runs_from_the_wheel(name: str, environment: Path, tmp_path: Path) -> None:
    model = save_random(name, tmp_path / "model")
    printed = ran(environment, "-c", DRIVER, model, *OPTIONS[name], folder=tmp_path)
    assert "2 of 4 ticks" in printed
    assert (tmp_path / "evaluated" / "report.html").exists()


@pytest.mark.slow
def test_the_command_is_installed(environment: Path, tmp_path: Path) -> None:
    assert "tune" in ran(environment.with_name("diffcache"), "--help", folder=tmp_path)
