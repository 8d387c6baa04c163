"""Training pictures of Fashion-MNIST, from the Debian package `dataset-fashion-mnist`.

The package's files go into the work folder, not into this repository:

    apt-get download dataset-fashion-mnist && dpkg-deb -x dataset-fashion-mnist_*.deb fashion
    mkdir -p outputs/testbeds/data && mv fashion/usr/share/datasets/fashion-mnist outputs/testbeds/data/
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from diffcache.evals.errors import EvaluationError

SIDE = 32


def pictures(work: Path, part: str = "train") -> tuple[Tensor, Tensor]:
    """Pictures [n, 3, 32, 32] in uint8, with a black margin of two pixels and three equal channels, and labels [n].

    Args:
        work: the work folder.
        part: "train" (60,000 pictures) or "t10k" (10,000).

    Raises:
        EvaluationError: the package's files are not in the work folder.
    """
    folder = work / "data" / "fashion-mnist"
    if not folder.exists():
        raise EvaluationError(f"no pictures in {folder}: unpack Debian's dataset-fashion-mnist there.")
    pixels = _read(folder / f"{part}-images-idx3-ubyte.gz", header=16).view(-1, 1, 28, 28)
    labels = _read(folder / f"{part}-labels-idx1-ubyte.gz", header=8)
    return functional.pad(pixels, (2, 2, 2, 2)).expand(-1, 3, -1, -1), labels.long()


def _read(path: Path, header: int) -> Tensor:
    return torch.from_numpy(np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header).copy())
