"""Ways to run one call beside each other: what each costs, and how near its pictures are to those of the full run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from diffcache.api import accelerate, report, restore
from diffcache.evals.harness.intervals import mean_with_interval
from diffcache.evals.metrics.fidelity import psnr, psnr_within

LONG = 20
"""Fewer steps than these leave no room for large speed-ups."""

Figures = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """One way to run a call.

    Attributes:
        name: in the table.
        options: of `accelerate`; None: no cache.
        broken: what is changed on purpose while it runs.
        steps: share of the run's steps that it takes instead of all.
        fewest: it is left out of shorter runs.
        beside: name of the way that it is compared with, sample by sample.
    """

    name: str
    options: dict[str, Any] | None
    broken: Callable[[], AbstractContextManager[None]] = nullcontext
    steps: float = 1.0
    fewest: int = 0
    beside: str | None = None


@dataclass(frozen=True)
class Scene:
    """What is run in many ways.

    Attributes:
        pipe: a pipeline.
        call: its arguments, for a number of steps.
        region: where an edit or a mask changes pictures of the full run, bool [batch, height, width]; None: all are of interest.
        truth: pictures of very many steps, if there are any.
    """

    pipe: Any
    call: Callable[[int], dict[str, Any]]
    region: Callable[[Tensor], Tensor] | None = None
    truth: Tensor | None = None


EVENLY = (
    Way("even, speedup=2", {"config": "even", "speedup": 2.0}),
    Way("uniform, every 2nd, the last", {"config": "uniform", "interval": 2, "order": 1}),
)
"""Tick caching that is spread evenly; the latter computes the last tick too."""

CACHED = (
    Way("default", {}),
    Way("speedup=2", {"speedup": 2.0}),
    Way("speedup=3", {"speedup": 3.0}, fewest=LONG),
    Way("speedup=4", {"speedup": 4.0}, fewest=LONG),
    *EVENLY,
    Way("half of the steps", None, steps=0.5),
    Way("three quarters of the steps", None, steps=0.75),
)


def measured_at(scene: Scene, ways: Sequence[Way], steps: int) -> Iterator[tuple[Figures, Tensor]]:
    """Runs a call in full and in each way."""
    full = scene.pipe(**scene.call(steps))[0]
    pictures: dict[str, Tensor] = {"full": full}
    yield _row(Way("full", None), steps, (1.0, "#" * steps), pictures, scene), full
    for way in (way for way in ways if steps >= way.fewest):
        pictures[way.name], cost = _run(scene, way, steps)
        row = _row(way, steps, cost, pictures, scene)
        print(row, flush=True)
        yield row, pictures[way.name]


def _run(scene: Scene, way: Way, steps: int) -> tuple[Tensor, tuple[float, str]]:
    """Pictures, the share of the full run's work, and the ticks' marks."""
    pipe, call = scene.pipe, scene.call
    if way.options is None:
        count = round(way.steps * steps)
        return pipe(**call(count))[0], (count / steps, "#" * count)
    accelerate(pipe, **way.options)
    try:
        with way.broken():
            pictures = pipe(**call(steps))[0]
        done = report(pipe)
    finally:
        restore(pipe)
    first = done.branches[0]
    marks = "".join(one.mark for one in done.calls if one.branch == first and one.cached)
    return pictures, (done.compute_fraction, marks)


def _row(way: Way, steps: int, cost: tuple[float, str], pictures: dict[str, Tensor], scene: Scene) -> Figures:
    """A row of the table."""
    own, full = pictures[way.name], pictures["full"]
    row: Figures = {"steps": steps, "way": way.name, "work": round(cost[0], 3), "ticks": cost[1]}
    if own is not full:
        row["own"] = _interval(psnr(own, full))
    if scene.truth is not None:
        row["truth"] = _interval(psnr(own, scene.truth))
    if own is full or scene.region is None:
        return row
    region = scene.region(full)
    inside = psnr_within(region, own, full)
    row["region"] = _interval(inside)
    if way.beside is not None:
        lost = psnr_within(region, pictures[way.beside], full) - inside
        row |= {"beside": way.beside, "lost": _interval(lost)}
    return row


def _interval(values: Tensor) -> list[float]:
    """A mean over samples, and the ends of its bootstrap interval of 95 %."""
    return [round(value, 1) for value in mean_with_interval(values)]
