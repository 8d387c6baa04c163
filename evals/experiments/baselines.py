"""What a searched schedule has to beat at its own compute: uniform reuse, EasyCache, ERTACache, fewer steps."""

from collections.abc import Sequence

from diffcache.evals.harness.comparison import Comparison, Row
from diffcache.profiling.calibrating.corrections import Corrections
from diffcache.profiling.calibrating.ertacache import calibrate_ertacache
from diffcache.profiling.calibrating.threshold import calibrate_threshold
from diffcache.profiling.recording.calling import Call
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.recipes.uniform import UniformConfig


def uniform(comparison: Comparison, share: float, *, hindsight: bool = False) -> list[Row]:
    """Holding, and extrapolating, at the interval nearest to a share of the work; the last tick is computed besides."""
    interval = max(round(1 / share), 1)
    methods = {
        "hold": UniformConfig(interval=interval, hindsight=hindsight),
        "order 1": UniformConfig(interval=interval, order=1, basis="output", hindsight=hindsight),
    }
    return [
        comparison.method(f"uniform {name}{_with(hindsight)}, every {interval}", method)
        for name, method in methods.items()
    ]


def even(comparison: Comparison, share: float) -> list[Row]:
    """Exactly as many evenly spaced ticks as a share of the work pays for: held and extrapolated, without and with hindsight.

    What is said to be better than another schedule because of its ticks or corrections has to beat these.
    """
    return [
        comparison.method(
            f"even {name}{_with(hindsight)}, {share:.0%}",
            EvenConfig(speedup=1 / share, order=order, hindsight=hindsight),
        )
        for name, order in (("hold", 0), ("order 1", 1))
        for hindsight in (False, True)
    ]


def baselines(
    comparison: Comparison, calls: Sequence[Call], share: float, *, hindsight: bool = False
) -> list[Row]:
    """EasyCache, ERTACache and fewer steps at about a share of the full run's work.

    Args:
        comparison: of the held-out samples. EasyCache's threshold is the one that meets the share on these.
        calls: ERTACache is calibrated on these.
        share: of the work.
        hindsight: whether ERTACache may use it as a correction.
    """
    easycache = calibrate_threshold(comparison.pipe, [comparison.call], EasyCacheConfig(), share)
    ertacache = calibrate_ertacache(comparison.pipe, calls, share, Corrections(hindsight=hindsight))
    return [
        comparison.method(f"easycache, {share:.0%}", easycache),
        comparison.method(f"ertacache{_with(hindsight)}, {share:.0%}", ReplayConfig(schedule=ertacache)),
        *comparison.fewer_steps(round(share * comparison.steps)),
    ]


def _with(hindsight: bool) -> str:
    return ", hindsight" if hindsight else ""
