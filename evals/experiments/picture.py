"""The picture of the README: the same emoji in full, with a cache, and in fewer steps, with time and differences.

Names were chosen whose full run is easy to recognise.
"""

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from diffcache.api import accelerate, report, restore
from diffcache.evals.harness.loop_time import timed_loop
from diffcache.evals.harness.side_by_side import GAIN
from diffcache.evals.harness.unseen import judged_on
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.pictures import median_of

TESTBED, STEPS, FEWER = "sd3", 28, 14
NAMES = ["ribbon on white", "christmas tree on green", "grinning face on blue", "panda face on white", "wolf face on green",
         "monkey face on green", "soccer ball on pink"]  # fmt: skip
SEEDS = (1, 3, 5, 6, 9, 13, 14)


class Row(NamedTuple):
    """Pictures [names, 3, height, width] in 0..1, and what stands beside them."""

    title: str
    pictures: Tensor


def rows() -> list[Row]:
    """The full run; a cached run with a kernel that has not seen the testbed, and fewer steps, each with its difference."""
    pipe = zoo.load(TESTBED)
    _drawn(pipe, STEPS)  # the first call of a process takes longer
    full, seconds = _drawn(pipe, STEPS)
    with judged_on(TESTBED):
        accelerate(pipe, speedup=STEPS / FEWER)
        cached = _drawn(pipe, STEPS)
        ticks = len(report(pipe).computed_ticks)
        restore(pipe)
    return [
        Row(f"full run\n{STEPS} steps\n{seconds:.1f} s", full),
        *_compared(f"speedup=2\n{ticks} of {STEPS} computed", full, *cached),
        *_compared(f"fewer steps\n{FEWER} steps", full, *_drawn(pipe, FEWER)),
    ]


def _compared(title: str, full: Tensor, pictures: Tensor, seconds: float) -> list[Row]:
    """Pictures, and how far they are from the full run's."""
    difference = (GAIN * (pictures - full).abs()).clamp(0, 1)
    near = median_of(psnr(full, pictures))
    return [
        Row(f"{title}\n{seconds:.1f} s, {near:.0f} dB", pictures),
        Row(f"its difference\nto the full run, x{GAIN}", difference),
    ]


def _drawn(pipe: Any, steps: int) -> tuple[Tensor, float]:
    """Pictures, and the processor time of the loop in seconds."""
    with timed_loop(pipe, zoo.call_for(TESTBED, NAMES, SEEDS, steps)) as (timer, call):
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
