"""Environments with the wheel and what it depends on, and nothing else; made of links to the packages of this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement


def built(root: Path, folder: Path) -> tuple[Path, Path]:
    """The wheel and the source archive of a checkout, the wheel built from that archive."""
    pip = [sys.executable, "-m", "pip", "-q"]
    subprocess.run([*pip, "install", "hatchling", "--target", str(folder / "tools")], check=True)
    environment = {**os.environ, "PYTHONPATH": str(folder / "tools")}
    made = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(made, cwd=root, env=environment, check=True, stdout=subprocess.DEVNULL)
    (archive,) = folder.glob("*.tar.gz")
    subprocess.run([*pip, "wheel", str(archive), "--no-deps", "-w", str(folder)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel, archive


def bare(wheel: Path, folder: Path, extras: tuple[str, ...] = ()) -> Path:
    """The interpreter of an environment with a wheel and the packages that it asks for, with those of some extras."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "-q", "--python", str(python)]
    subprocess.run([*pip, "install", "--no-deps", str(wheel)], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (own,) = site.glob("diffcache-*.dist-info")
    needed = dict(_closure(Distribution.at(own).requires or [], extras, {}))
    for found in needed.values():
        for part in {file.parts[0] for file in found.files or [] if ".." not in file.parts}:
            source = Path(str(found.locate_file(part)))
            if source.exists() and not (site / part).exists():
                (site / part).symlink_to(source)
    for shim in Path(str(distribution("torch").locate_file(""))).glob("_torchvision_on_cpu.p*"):
        (site / shim.name).symlink_to(shim)
    return python


def _closure(
    requires: list[str], extras: tuple[str, ...], seen: dict[str, Distribution]
) -> Iterator[tuple[str, Distribution]]:
    """Every package that is asked for, and what it asks for, as far as it is installed here."""
    for requirement in map(Requirement, requires):
        marker = requirement.marker
        wanted = marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))
        if not wanted or requirement.name in seen:
            continue
        try:
            found = distribution(requirement.name)
        except PackageNotFoundError:
            continue  # an optional package of another platform
        seen[requirement.name] = found
        yield requirement.name, found
        yield from _closure(found.requires or [], tuple(requirement.extras), seen)


def ran(*command: str | Path, folder: Path) -> str:
    """What a command prints that runs in a folder outside of the checkout, its errors too."""
    settings = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env={**kept, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout
