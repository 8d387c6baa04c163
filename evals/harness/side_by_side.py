"""Pictures of a comparison: full run, accelerated run and their difference, side by side; as a file, and in a terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffcache.evals.metrics.media import to_pil

GAIN = 10
"""By which the difference is multiplied, to be visible."""

LEAST = 160
"""Pixels that a picture is enlarged to."""

SAMPLES = 4
"""Rows at most of a drawing of pairs."""

GAP, HEAD = 6, 24
"""Pixels between pictures, and of the line above them."""


def draw_pairs(baseline: Tensor, accelerated: Tensor, path: Path) -> Path:
    """Draws full run | accelerated | difference (ten times) for the first samples, one row each.

    Args:
        baseline, accelerated: [N, 3, H, W], or [N, F, 3, H, W] for videos, of which the middle frame is shown; 0..1.
        path: of the PNG.
    """
    baseline, accelerated = stills(baseline)[:SAMPLES], stills(accelerated)[:SAMPLES]
    difference = (GAIN * (accelerated - baseline).abs()).clamp(0, 1)
    return draw_columns(
        {"full run": baseline, "accelerated": accelerated, f"difference x{GAIN}": difference}, path
    )


def draw_columns(columns: dict[str, Tensor], path: Path) -> Path:
    """Draws pictures [N, 3, H, W] in 0..1 below their names, one row for each sample."""
    from PIL import Image, ImageDraw, ImageFont

    first = next(iter(columns.values()))
    scale = max(1, -(-LEAST // first.shape[-1]))
    wide, high = first.shape[-1] * scale + GAP, first.shape[-2] * scale + GAP
    sheet = Image.new("RGB", (wide * len(columns) + GAP, high * len(first) + HEAD + GAP), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for i, (name, pictures) in enumerate(columns.items()):
        pen.text((GAP + wide * i, 4), name, fill="black", font=font)
        for row, picture in enumerate(pictures):
            shown = as_image(picture)
            sheet.paste(
                shown.resize((shown.width * scale, shown.height * scale), Image.Resampling.NEAREST),
                (GAP + wide * i, HEAD + high * row),
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)
    return path


def in_terminal(pictures: Sequence[Tensor], columns: int) -> str:
    """Pictures [3, H, W] beside each other in half blocks of 24-bit colours, for a terminal of so many columns."""
    from PIL import Image

    side = max(8, min(32, (columns - 1) // max(len(pictures), 1) - 1))
    small = [
        torch.frombuffer(
            bytearray(as_image(picture).resize((side, side - side % 2), Image.Resampling.BOX).tobytes()),
            dtype=torch.uint8,
        )
        .view(side - side % 2, side, 3)
        .tolist()
        for picture in pictures
    ]
    lines = []
    for y in range(0, side - side % 2, 2):
        cells = ("".join(_half(rows[y][x], rows[y + 1][x]) for x in range(side)) for rows in small)
        lines.append("\x1b[0m ".join(cells) + "\x1b[0m")
    return "\n".join(lines)


def _half(upper: list[int], lower: list[int]) -> str:
    return f"\x1b[38;2;{';'.join(map(str, upper))}m\x1b[48;2;{';'.join(map(str, lower))}m▀"


def as_image(picture: Tensor) -> Any:
    """A picture [3, H, W] as one of PIL; what is outside of 0..1 is clamped."""
    return to_pil(picture.clamp(0, 1))


def stills(pictures: Tensor) -> Tensor:
    """Pictures as they are; of videos the middle frames."""
    return pictures[:, pictures.shape[1] // 2] if pictures.ndim == 5 else pictures
