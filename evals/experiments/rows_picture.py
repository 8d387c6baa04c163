"""The picture of docs/rows.md: for some edits the tokens that are computed, by tick, and what comes out."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from torch import Tensor
from torch.nn import functional

from diffcache.api import accelerate, report, restore
from diffcache.evals.experiments.rows import EVERYTHING, stickers
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.tokens.row_rule import Region, Sight

TESTBED = "kontext_turbo"
EDITS = 3
GREY = 0.5


class Column(NamedTuple):
    """Pictures [n, 3, height, width] in 0..1, and what stands above them and below each."""

    title: str
    pictures: Tensor
    below: list[str] | None = None


@contextmanager
def looked_at(found: list[Tensor]) -> Iterator[None]:
    """Lists the places that regions choose."""
    region = Region.__call__

    def call(self: Region, sight: Sight) -> Tensor:
        places = region(self, sight)
        found.append(places[:, sight.moving[0]])
        return places

    with patch.object(Region, "__call__", call):
        yield


def draw_rows(path: Path) -> None:
    """Writes the picture."""
    pipe = zoo.load(TESTBED)

    def call() -> dict[str, Any]:
        return zoo.call_for(TESTBED, stickers(EDITS), range(EDITS), zoo.STEPS[TESTBED])

    def drawn(name: str, **options: Any) -> Column:
        accelerate(pipe, **options)
        pictures, done = pipe(**call())[0], report(pipe)
        restore(pipe)
        ticks = "".join(each.mark for each in done.calls if each.cached)
        title = f"{name}\n{ticks}, work {done.compute_fraction:.2f}"
        return Column(title, pictures, [f"{value:.0f} dB" for value in psnr(pictures, full)])

    references, full = call()["image"], pipe(**call())[0]
    found: list[Tensor] = []
    with looked_at(found):
        some = drawn("some tokens", rows="region", **EVERYTHING)
    edge = round(found[0].shape[1] ** 0.5)
    region = found[0].view(-1, 1, edge, edge).float()
    region = functional.interpolate(region, size=full.shape[-2:])
    _save(
        [
            Column("reference", references),
            Column("light: computed\nat %", references * (GREY + GREY * region)),
            Column(f"all tokens\n{'#' * zoo.STEPS[TESTBED]}", full),
            some,
            drawn("a tick skipped", config="uniform", interval=2, order=1),
            drawn("two ticks skipped", config="even", speedup=2),
        ],
        path,
    )


def _save(columns: list[Column], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.9 * len(columns), 2.1 * EDITS + 0.3), layout="constrained")
    axes = figure.subplots(EDITS, len(columns), squeeze=False)
    for column, of_column in zip(columns, axes.T, strict=True):
        of_column[0].set_title(column.title, fontsize=10)
        below = column.below or [""] * EDITS
        for picture, text, axis in zip(column.pictures, below, of_column, strict=True):
            axis.imshow(picture.clamp(0, 1).movedim(0, -1))
            axis.set(xticks=[], yticks=[], xlabel=text)
    figure.savefig(path, dpi=90)
