"""What a searched schedule has to beat at its own compute: uniform reuse, EasyCache, ERTACache, fewer steps."""

from collections.abc import Sequence

from diffcache.evals.harness.comparison import Comparison, Row
from diffcache.profiling.calibrating.corrections import Corrections
from diffcache.profiling.calibrating.ertacache import calibrate_ertacache
from diffcache.profiling.recording.calling import Call
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.uniform import UniformConfig

HALVINGS = 6


def uniform(comparison: Comparison, share: float, *, hindsight: bool = False) -> list[Row]:
    """Holding and extrapolating at the interval that comes nearest to a share of the work; the last tick is computed besides."""
    interval = max(round(1 / share), 1)
    methods = {
        "hold": UniformConfig(interval=interval, hindsight=hindsight),
        "order 1": UniformConfig(interval=interval, order=1, basis="output", hindsight=hindsight),
    }
    amended = ", hindsight" if hindsight else ""
    return [
        comparison.method(f"uniform {name}{amended}, every {interval}", method)
        for name, method in methods.items()
    ]


def baselines(
    comparison: Comparison, calls: Sequence[Call], share: float, *, hindsight: bool = False
) -> list[Row]:
    """Rows of what is not uniform, at about a share of the full run's work.

    Args:
        comparison: of the samples that are kept apart.
        calls: what ERTACache is calibrated on.
        share: of the work.
        hindsight: is among ERTACache's corrections.
    """
    erta = calibrate_ertacache(comparison.pipe, calls, share, Corrections(hindsight=hindsight))
    amended = ", hindsight" if hindsight else ""
    return [
        easycache(comparison, share),
        comparison.method(f"ertacache{amended}, {share:.0%}", ReplayConfig(schedule=erta)),
        *comparison.fewer_steps(round(share * comparison.steps)),
    ]


def easycache(comparison: Comparison, share: float) -> Row:
    """EasyCache at the threshold that comes nearest to a share of the work, by bisection."""
    low, high, rows = 0.0, 1.0, []
    for _ in range(HALVINGS):
        threshold = (low + high) / 2
        rows.append(comparison.method(f"easycache, {share:.0%}", EasyCacheConfig(threshold=threshold)))
        low, high = (threshold, high) if rows[-1].compute > share else (low, threshold)
    return min(rows, key=lambda row: abs(row.compute - share))
