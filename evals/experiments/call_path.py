"""What one denoiser call walks through: our functions, our files, and how often the path changes file.

Comprehensions count as part of their function, generated constructors not at all.
"""

import sys
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from typing_extensions import Self

from diffcache.api import accelerate
from diffcache.attach.attach import denoising_run
from diffcache.evals.testbeds import zoo

ROOT = Path(__file__).resolve().parents[2]
SETTINGS: dict[str, dict[str, Any]] = {
    "whole denoiser": {},
    "whole denoiser, a line": {"order": 1},
    "every block": {"site": "block"},
    "every attention": {"site": "attention"},
}
COMPUTED, REUSED = 4, 5
"""Ticks to follow, of six that are computed and reused in turns."""


class CallPath:
    """The functions of ours that are entered while it is open, in order, as (file, name)."""

    def __init__(self) -> None:
        self.entered: list[tuple[str, str]] = []
        self._files: dict[CodeType, str | None] = {}

    def __enter__(self) -> Self:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def __str__(self) -> str:
        files = [file for file, _ in self.entered]
        changes = sum(a != b for a, b in pairwise(files))
        return f"{len(files):5d} functions {len(set(files)):3d} files {changes:4d} changes of file"

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_name.startswith("<"):
            return
        if code not in self._files:
            self._files[code] = _file_of(code)
        file = self._files[code]
        if file is not None:
            self.entered.append((file, code.co_name))


def _file_of(code: CodeType) -> str | None:
    """Our file that some code stands in; None for other people's and for generated code."""
    path = Path(code.co_filename).resolve()
    others = path == Path(__file__).resolve() or "site-packages" in path.parts
    ours = path.is_file() and ROOT in path.parents and not others
    return str(path.relative_to(ROOT)) if ours else None


@torch.no_grad()
def paths_of(options: dict[str, Any]) -> list[CallPath]:
    """The paths of a loop of six ticks."""
    net = zoo.load("dit").transformer
    accelerate(net, "uniform", interval=2, tail_steps=0, **options)
    size, channels = net.config.sample_size, net.config.in_channels
    latents, label, found = torch.randn(1, channels, size, size), torch.tensor([1]), []
    with denoising_run(net, 6) as run:
        for tick in range(6):
            run.begin_step(tick)
            with CallPath() as path:
                net(latents, timestep=torch.tensor([900 - tick]), class_labels=label)
            found.append(path)
    return found
