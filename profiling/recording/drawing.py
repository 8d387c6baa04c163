"""A recording as a picture."""

from pathlib import Path

import torch

from diffcache.profiling.recording.recording import Recording

MANY = 8
"""The most curves that still have a legend."""


def draw(recording: Recording, path: str | Path) -> Path:
    """Draws the change, norm ratio and cosine of each site and branch over the ticks, and a heat map of the changes.

    Args:
        recording: what is drawn.
        path: of the picture; its folder is made if it does not exist.

    Raises:
        ImportError: matplotlib is not installed: it comes with the extra `evals`.
    """
    from matplotlib.figure import Figure

    curves = {f"{site} · {branch}": curve for (site, branch), curve in recording.curves.items()}
    figure = Figure(figsize=(15, max(3.6, 1.8 + 0.22 * len(curves))), layout="constrained")
    change, ratio, cosine, heat = figure.subplots(1, 4)
    ticks = range(1, recording.num_ticks)
    for name, curve in curves.items():
        change.semilogy(ticks, curve.change, label=name, linewidth=1)
        ratio.plot(ticks, curve.ratio[1:], linewidth=1)
        cosine.plot(ticks, curve.cosine[1:], linewidth=1)
    change.set(title="relative L1 change", xlabel="tick")
    ratio.set(title="norm ratio", xlabel="tick")
    cosine.set(title="cosine", xlabel="tick")
    if len(curves) <= MANY:
        change.legend(fontsize=7)
    rows = torch.stack([curve.change.log10() for curve in curves.values()])
    edges = (0.5, recording.num_ticks - 0.5, len(rows) - 0.5, -0.5)
    picture = heat.imshow(rows.numpy(), aspect="auto", cmap="viridis", interpolation="none", extent=edges)
    heat.set(title="log10 change, tick by site", xlabel="tick")
    heat.set_yticks(range(len(curves)), list(curves), fontsize=6)
    figure.colorbar(picture, ax=heat)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path
