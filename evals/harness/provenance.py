"""Where figures come from (command, date, device, versions), and where they are kept."""

import platform
import shlex
import sys
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"
PACKAGES = ("diffcache", "torch", "diffusers", "torchao", "torchmetrics", "cache-dit", "DeepCache")


def provenance(device: str) -> dict[str, Any]:
    """Of this process; packages that are not installed are left out."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "command": shlex.join(["python", *sys.argv]),
        "date": date.today().isoformat(),
        "device": device,
        "versions": versions,
    }
