"""Every method at several settings on one testbed, with its compute and its closeness to the full run."""

from collections.abc import Iterator, Sequence
from typing import Any

from tqdm import tqdm

from diffcache.config import CacheConfig
from diffcache.evals.harness.comparison import SHARES, Comparison, Row, as_json
from diffcache.evals.harness.results import Result, renewals
from diffcache.evals.testbeds import zoo
from diffcache.schedulers.errors import TargetError

SWEEPS: dict[str, tuple[str, dict[str, Any], str, tuple[Any, ...]]] = {
    "hold": ("uniform", {"warmup_steps": 3}, "interval", (2, 3, 4)),
    "order 1": ("uniform", {"order": 1, "basis": "output", "warmup_steps": 3}, "interval", (2, 3, 4)),
    "easycache": ("easycache", {}, "threshold", (0.03, 0.06, 0.1, 0.2)),
    "fbcache": ("fbcache", {}, "threshold", (0.03, 0.06, 0.12, 0.24)),
    "teacache": ("teacache", {}, "threshold", (0.05, 0.1, 0.2, 0.4)),
    "magcache": ("magcache", {}, "threshold", (0.03, 0.06, 0.12, 0.24)),
    "taylorseer": ("taylorseer", {"order": 1, "warmup_steps": 3}, "interval", (2, 3, 4, 6)),
    "spectrum": ("spectrum", {}, "growth", (0.0, 0.75, 3.0)),
    "fora": ("fora", {}, "interval", (2, 3, 4, 6)),
    "profilingdit": ("profilingdit", {}, "interval", (2, 3, 4, 6)),
    "deepcache": ("deepcache", {}, "interval", (2, 3, 4, 6)),
    "pab": ("pab", {}, "interval", (2, 4, 8)),
    "fastercache": ("fastercache", {}, "guidance_interval", (2, 5, 10)),
    "tgate": ("tgate", {}, "gate", (0.2, 0.4, 0.6)),
}
"""By the name in the table: the method, its fixed options, the option that is varied, and its values. The default is compared in the race: here
its prior would have seen the testbeds."""


def settings() -> Iterator[tuple[str, CacheConfig]]:
    """Every method at every setting, by row name."""
    for name, (method, fixed, knob, values) in SWEEPS.items():
        for value in values:
            yield f"{name} {value}", CacheConfig.methods()[method].of(**fixed, **{knob: value})


def comparison_on(testbed: str, samples: int, steps: int) -> Comparison:
    """On a testbed's held-out prompts."""
    return Comparison(zoo.load(testbed), zoo.sample_call(testbed, 0, steps, samples))


def all_rows(testbed: str, comparison: Comparison) -> list[Row]:
    """The full run, every method that this denoiser allows, and fewer steps."""
    rows = [comparison.full_row()]
    for name, config in tqdm(list(settings()), desc=testbed):
        try:
            rows.append(comparison.method(name, config))
        except TargetError as error:  # this denoiser has no such site
            tqdm.write(f"{name}: {error}")
    for share in SHARES:
        rows += comparison.fewer_steps(round(share * comparison.steps))
    return rows


def with_rows_of(
    stored: Result,
    comparison: Comparison,
    names: Sequence[str],
    header: dict[str, Any],
) -> Result:
    """A stored result with these rows measured again.

    Args:
        stored: the result so far.
        comparison: with the same samples and steps.
        names: of the rows.
        header: of the new measurement; it goes into the notes "renewed".
    """
    chosen = {name: config for name, config in settings() if name in names}
    renewed = [comparison.method(name, config) for name, config in chosen.items()]
    first, *others = [row for row in stored["rows"] if row["name"] not in chosen]
    notes = renewals(stored.get("renewed", []), header, list(chosen))
    return {**stored, "rows": [first, *as_json(renewed), *others], "renewed": notes}
