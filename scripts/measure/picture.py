"""Draws docs/demo.png, the picture of the README: the same emoji from the full run and from accelerated ones, with the time they took.

`python scripts/measure/picture.py` takes about a minute. Names were chosen whose full run is easy to recognise.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffcache import accelerate, report, restore
from diffcache.evals.harness.command_line import parser
from diffcache.evals.harness.loop_time import timed_loop
from diffcache.evals.harness.quality import psnr
from diffcache.evals.harness.unseen import judged_on
from diffcache.evals.testbeds import zoo

TESTBED, STEPS = "sd3", 50
NAMES = ["ribbon on white", "christmas tree on green", "grinning face on blue", "panda face on white", "wolf face on green",
         "monkey face on green", "soccer ball on pink"]  # fmt: skip
SEEDS = (1, 3, 5, 6, 9, 13, 14)
SPEEDUPS = (2.0, 3.0)
PATH = Path(__file__).resolve().parents[2] / "docs" / "demo.png"


class Row(NamedTuple):
    """Pictures [names, 3, height, width] in 0..1, and what stands beside them."""

    title: str
    pictures: Tensor


def rows() -> list[Row]:
    """The full run, and one for each speed-up with a kernel that has not seen the testbed."""
    pipe = zoo.load(TESTBED)
    drawn(pipe)  # the first call of a process takes longer
    full, seconds = drawn(pipe)
    found = [Row(f"full run\n{STEPS} steps\n{seconds:.1f} s", full)]
    with judged_on(TESTBED):
        for speedup in SPEEDUPS:
            accelerate(pipe, speedup=speedup)
            pictures, seconds = drawn(pipe)
            ticks = len(report(pipe).computed_ticks)
            title = f"speedup={speedup:g}\n{ticks} of {STEPS} computed\n{seconds:.1f} s, {psnr(full, pictures).median().item():.0f} dB"
            found.append(Row(title, pictures))
            restore(pipe)
    return found


def drawn(pipe: Any) -> tuple[Tensor, float]:
    """Pictures, and the processor time of the loop in seconds."""
    with timed_loop(pipe, zoo.call_for(TESTBED, NAMES, SEEDS, STEPS)) as (timer, call):
        pictures: Tensor = pipe(**call)[0]
    return pictures, timer.cpu_seconds


def draw(found: list[Row], path: Path) -> Path:
    """Writes the rows as one picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.1 * len(NAMES) + 1.4, 1.15 * len(found)), layout="constrained")
    axes = figure.subplots(len(found), len(NAMES) + 1, width_ratios=[1.25] + [1.0] * len(NAMES))
    for line, row in zip(axes, found, strict=True):
        for place in line:
            place.axis("off")
        line[0].text(1, 0.5, row.title, ha="right", va="center", fontsize=8)
        for place, picture in zip(line[1:], row.pictures, strict=True):
            place.imshow(picture.movedim(0, -1).numpy(), interpolation="bilinear")
    figure.savefig(path, dpi=110)
    return path


def main() -> None:
    parser(__doc__).parse_args()
    torch.set_num_threads(1)
    print(draw(rows(), PATH))


if __name__ == "__main__":
    main()
