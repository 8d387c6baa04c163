"""Where figures come from: the header of every file in evals/results."""

import platform
import shlex
import subprocess
import sys
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = (
    "diffcache", "torch", "triton", "diffusers", "transformers", "torchao", "torchmetrics", "cache-dit", "DeepCache",
)  # fmt: skip
COMMIT = ("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude", "*")


def header(device: str = "cpu") -> dict[str, Any]:
    """What a result of this process is labelled with.

    Args:
        device: where it was measured, as torch names it ("cpu", "cuda:0").

    Returns:
        "command"; "commit", with "-dirty" where files had been changed, None outside a checkout; "date"; "device": the
        GPU's name, or the CPU's number of threads; "versions" of the packages that are installed.
    """
    return {
        "command": shlex.join(["python", *sys.argv]),
        "commit": _commit(),
        "date": date.today().isoformat(),
        "device": _device(device),
        "versions": _versions(),
    }


def _commit() -> str | None:
    try:
        done = subprocess.run(
            COMMIT, capture_output=True, text=True, check=False, cwd=Path(__file__).resolve().parent
        )
    except FileNotFoundError:  # no git
        return None
    return done.stdout.strip() or None


def _device(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{device}, {'one thread' if threads == 1 else f'{threads} threads'}"


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
