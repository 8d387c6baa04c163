"""Grids of pictures as PNG files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor


def save_sheet(pictures: Tensor, path: Path, columns: int) -> None:
    """Writes pictures [n, 3, h, w] in [0, 1] as one PNG with `columns` pictures a row and nothing between them."""
    n, _, height, width = pictures.shape
    rows = pictures.view(n // columns, columns, 3, height, width).permute(0, 3, 1, 4, 2)
    pixels = rows.reshape(n // columns * height, columns * width, 3).mul(255).round().byte().numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, optimize=True)


def save_grid(pictures: Tensor, path: Path, columns: int = 8, zoom: int = 2) -> None:
    """Writes pictures [n, 3, h, w] in [0, 1] as one PNG with `columns` pictures a row, enlarged `zoom` times."""
    n, _, height, width = pictures.shape
    rows = -(-n // columns)
    sheet = np.full((rows * (height + 1), columns * (width + 1), 3), 255, dtype=np.uint8)
    pixels = pictures.detach().float().clamp(0, 1).mul(255).round().byte().cpu().permute(0, 2, 3, 1).numpy()
    for i, picture in enumerate(pixels):
        top, left = (i // columns) * (height + 1), (i % columns) * (width + 1)
        sheet[top : top + height, left : left + width] = picture
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(sheet)
    image = image.resize((image.width * zoom, image.height * zoom), Image.Resampling.NEAREST)
    image.save(path, optimize=True)
