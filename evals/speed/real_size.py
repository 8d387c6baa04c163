"""Speed at real size: every variant runs the same loop on one denoiser in one process, and all take turns.

A row is written as soon as it is known. Of each variant:

- wall_s: one loop, synchronised at its ends only, median over rounds; first_run_s: the first loop, which compiles and traces.
- computed: forwards in which a block in the middle ran.
- realised: the time of the loop without a cache (`base_of`) over this one's; ideal: ticks over computed ticks; efficiency: realised over ideal.
- reused_ms: what a reused tick takes; over_ms: what a tick takes on top of a plain one, where nothing is reused.
- first_tick_ms and host_ms: what the host needs for the first tick (of the first loop, and later), and for a reused one.
- peak_bytes: on top of the weights. cache_bytes: what our report says.
- reads: reads of the device in one loop, by line of ours.
"""

import gc
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from diffcache.evals.speed.real_models import RealModel
from diffcache.evals.speed.real_variants import LAST, Figures, Variant, base_of
from diffcache.host.compiled import is_compiled

Row = dict[str, Any]
Save = Callable[[dict[str, Row]], None]

OWN = ("/diffcache/", "/schedulers/", "/kernels/")
OTHERS = ("/site-packages/", "/evals/")


@dataclass(frozen=True)
class Bounds:
    """How long is measured.

    Attributes:
        ticks: of a loop.
        rounds: of all variants, after a loop that is not counted; the first round of each follows that loop at once.
        seconds: no loop of another round begins after so many.
    """

    ticks: int
    rounds: int
    seconds: float


@dataclass
class Loop:
    """One loop of one variant.

    Attributes:
        wall: its seconds.
        host: seconds that the host needed for each tick.
        computed: whether each tick was.
        peak: bytes on top of the weights.
        figures: what the variant tells.
        finite: whether the result is.
    """

    wall: float = 0.0
    host: list[float] = field(default_factory=list)
    computed: list[bool] = field(default_factory=list)
    peak: int = 0
    figures: Figures = field(default_factory=dict)
    finite: bool = True


def measure(model: RealModel, found: dict[str, Variant], bounds: Bounds, save: Save) -> dict[str, Row]:
    """Measures all variants. One that fails has a row that says so, and is left out of the rounds."""
    begun, rows = time.perf_counter(), dict[str, Row]()
    first: dict[str, Loop] = {}
    rounds: dict[str, list[Loop]] = {name: [] for name in found}
    reads: dict[str, Row] = {}
    with _middle_seen(model) as seen:
        for group in (
            [name for name in found if not name.startswith(LAST)],
            [name for name in found if name.startswith(LAST)],
        ):
            for name in group:
                try:
                    first[name] = _loop(model, found[name], bounds.ticks, seen)
                    rounds[name].append(_loop(model, found[name], bounds.ticks, seen))
                except Exception as error:  # noqa: BLE001  the other variants are still worth their time
                    rows[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
                    gc.collect()
                rows |= _rows(first, rounds, reads, bounds.ticks)
                save(rows)
            for _ in range(1, bounds.rounds):
                for name in (name for name in group if rounds[name]):
                    if time.perf_counter() - begun < bounds.seconds:
                        rounds[name].append(_loop(model, found[name], bounds.ticks, seen))
                rows |= _rows(first, rounds, reads, bounds.ticks)
                save(rows)
            for name in (name for name in group if name in first and name.startswith("ours")):
                if time.perf_counter() - begun < 1.2 * bounds.seconds:
                    reads[name] = {"reads": _reads(model, found[name], bounds.ticks, seen)}
            rows |= _rows(first, rounds, reads, bounds.ticks)
            save(rows)
    return rows


@contextmanager
def _middle_seen(model: RealModel) -> Iterator[list[int]]:
    """A list that grows by one when the module in the middle runs, or the compiled one around it, which calls no hooks inside."""
    seen: list[int] = []
    around = [each for each in model.net.modules() if is_compiled(each) and model.middle in [*each.modules()]]
    if around:
        run: Any = around[-1]._compiled_call_impl

        def counted(*args: Any, **kwargs: Any) -> Any:
            seen.append(1)
            return run(*args, **kwargs)

        with patch.object(around[-1], "_compiled_call_impl", counted):
            yield seen
        return
    handle = model.middle.register_forward_hook(lambda *_: seen.append(1))
    try:
        yield seen
    finally:
        handle.remove()


@torch.no_grad()
def _loop(model: RealModel, variant: Variant, ticks: int, seen: list[int]) -> Loop:
    x, found = model.latent.clone(), Loop()
    cuda = x.device.type == "cuda"
    weights = torch.cuda.memory_allocated() if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    _synchronise(x)
    start = time.perf_counter()
    with variant(model.net, ticks, found.figures) as begin_tick:
        for i in range(ticks):
            seen.clear()
            begun = time.perf_counter()
            begin_tick(i)
            output = model.net(**model.call(x, 1 - i / ticks))[0]
            found.host.append(time.perf_counter() - begun)
            found.computed.append(bool(seen))
            x = x - output / ticks
        _synchronise(x)
        found.wall = time.perf_counter() - start
    found.peak = torch.cuda.max_memory_allocated() - weights if cuda else 0
    found.finite = bool(x.isfinite().all())
    return found


def _synchronise(x: Tensor) -> None:
    if x.device.type == "cuda":
        torch.cuda.synchronize()


def _rows(
    first: dict[str, Loop], rounds: dict[str, list[Loop]], reads: dict[str, Row], ticks: int
) -> dict[str, Row]:
    """What is known of each variant by now."""
    walls = {name: median(loop.wall for loop in loops) for name, loops in rounds.items() if loops}
    tick = {name: walls[base_of(name)] / ticks for name in walls if base_of(name) in walls}
    return {
        name: _row(first[name], rounds[name], wall, tick.get(name)) | reads.get(name, {})
        for name, wall in walls.items()
    }


def _row(first: Loop, loops: list[Loop], wall: float, tick: float | None) -> Row:
    """The figures of a variant; `tick` is one's seconds without a cache, None where that loop is not known."""
    last = loops[-1]
    ticks, computed = len(last.computed), sum(last.computed)
    reused = [host for host, was in zip(last.host, last.computed, strict=True) if not was]
    row: Row = {
        "wall_s": wall,
        "walls_s": [loop.wall for loop in loops],
        "first_run_s": first.wall,
        "ticks": ticks,
        "computed": computed,
        "first_tick_ms": [1e3 * first.host[0], 1e3 * median(loop.host[0] for loop in loops)],
        "host_ms": 1e3 * median(reused) if reused else None,
        "peak_bytes": max(loop.peak for loop in loops),
        "finite": last.finite,
        **last.figures,
    }
    if tick is not None and computed:
        spent = wall - computed * tick
        row |= {
            "plain_tick_ms": 1e3 * tick,
            "realised": ticks * tick / wall,
            "ideal": ticks / computed,
            "efficiency": computed * tick / wall,
            "reused_ms": 1e3 * spent / len(reused) if reused else None,
            "over_ms": None if reused else 1e3 * spent / ticks,
        }
    return row


def _reads(model: RealModel, variant: Variant, ticks: int, seen: list[int]) -> dict[str, int]:
    """How often a loop waits for the device, by line of ours; none without CUDA, where nothing tells."""
    if model.latent.device.type != "cuda":
        _loop(model, variant, ticks, seen)
        return {}
    found = Counter[str]()

    def note(*_: Any) -> None:
        own = [frame for frame in traceback.extract_stack() if _is_ours(frame.filename)]
        found[f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "elsewhere"] += 1

    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = note  # type: ignore[assignment]
            _loop(model, variant, ticks, seen)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return dict(found)


def _is_ours(path: str) -> bool:
    return any(part in path for part in OWN) and not any(part in path for part in OTHERS)
