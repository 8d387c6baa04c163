"""Pictures of a comparison: full run, accelerated run and their difference, side by side."""

from pathlib import Path

from torch import Tensor

GAIN = 10
"""By which the difference is multiplied, to be visible."""


def draw_pairs(baseline: Tensor, accelerated: Tensor, path: Path, *, samples: int = 4) -> Path:
    """Draws full run | accelerated | difference (ten times) for the first samples, one row each.

    Args:
        baseline, accelerated: [N, 3, H, W], or [N, F, 3, H, W] for videos, of which the middle frame is shown; 0..1.
        path: of the PNG.
        samples: rows at most.
    """
    from matplotlib.figure import Figure

    baseline, accelerated = _stills(baseline)[:samples], _stills(accelerated)[:samples]
    difference = (GAIN * (accelerated - baseline).abs()).clamp(0, 1)
    columns = {"full run": baseline, "accelerated": accelerated, f"difference x{GAIN}": difference}
    figure = Figure(figsize=(2.1 * len(columns), 2.1 * len(baseline)), layout="constrained")
    axes = figure.subplots(len(baseline), len(columns), squeeze=False)
    for column, (title, pictures) in enumerate(columns.items()):
        axes[0][column].set_title(title, fontsize=10)
        for row, picture in enumerate(pictures):
            axes[row][column].imshow(picture.movedim(0, -1).numpy(), interpolation="nearest")
            axes[row][column].axis("off")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    return path


def _stills(pictures: Tensor) -> Tensor:
    return pictures[:, pictures.shape[1] // 2] if pictures.ndim == 5 else pictures
