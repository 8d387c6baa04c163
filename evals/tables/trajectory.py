"""The tables of docs/measured/trajectory.md: the method on each testbed, with a prior that has never seen it, and as `tune` finds it."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from diffcache.evals.harness.intervals import interval_of_gain, mean_with_interval
from diffcache.evals.harness.markdown import markdown_table, named_once
from diffcache.evals.harness.results import stored
from diffcache.evals.race.row import ROUNDING
from diffcache.evals.race.standings import Difference
from diffcache.evals.tables.gains import ALIKE, EVEN, even_of, gained
from diffcache.evals.testbeds import splits

SHOWN = {"prior": "`speedup=`", "tuned": "`tune`"}
MEASURED = {
    "tuned": "`tune`",
    "planned": "without the correction of the last step",
    "own": "with covariance and response of four other samples",
    "seen": "with those of the very samples that are scored, which nobody has beforehand",
}
EXPECTING = {
    "prior": "`speedup=`",
    "tuned": "`tune`, which expects what it measured where it chose",
}


def trajectory_table() -> str:
    """A row for each testbed and speed-up; and the medians of the differences to even ticks."""
    found = stored("trajectory")
    rows = [(testbed, row) for testbed, result in found.items() for row in result["rows"]]
    alone = [row for _, row in rows]
    result = next(iter(found.values()))
    header = result["header"]
    ratios = _expected(alone, EXPECTING)
    return (
        f"{_beside_even(rows, SHOWN)}\n\n{_differences(alone, SHOWN)}\n{_above(alone)}\n{ratios}\n\n"
        f"{result['samples']} samples of {result['rows'][0]['steps']} steps, {header['device']}, {header['date']}."
    )


def trajectory_summary() -> str:
    """What is gained on even ticks in all rows, and on the testbeds on which nothing was fitted."""
    found = stored("trajectory")
    rows = [row for result in found.values() for row in result["rows"]]
    ticks = [row["ticks"] for row in rows]
    said = {name: _spread([row[name] - even_of(row) for row in rows]) for name in SHOWN}
    *others, last = (name for name in splits.UNSEEN if name in found)
    unseen = [row["prior"] - even_of(row) for name in (*others, last) for row in found[name]["rows"]]
    return (
        f"On {len(found)} testbeds, with {min(ticks)} to {max(ticks)} of {rows[0]['steps']} steps computed, `speedup=` is {said['prior']} better in the median than our "
        f"own cache with evenly spaced computed steps, and `tune`, which measures your pipeline first, {said['tuned']}. On {', '.join(others)} and {last}, on which nothing was fitted, "
        f"`speedup=` is {_spread(unseen)} better."
    )


def _spread(gains: Sequence[float]) -> str:
    return f"{median(gains):.1f} dB ({min(gains):+.1f} to {max(gains):+.1f})"


def _beside_even(rows: Sequence[tuple[str, dict[str, Any]]], shown: Mapping[str, str]) -> str:
    """A line for each testbed and row, as a table."""
    head = ["testbed", "ticks", "evenly spaced", *shown.values(), "as many plain steps"]
    lines = ([testbed, str(row["ticks"]), *_figures(row, shown)] for testbed, row in rows)
    return markdown_table(head, named_once(lines))


def _figures(row: dict[str, Any], shown: Mapping[str, str]) -> list[str]:
    """PSNR of even ticks, the better of two orders; of what is shown; and of as many plain steps."""
    figures = (even_of(row), *(row[name] for name in shown), row["fewer_steps"])
    return [f"{figure:.1f}" for figure in figures]


def _differences(rows: list[dict[str, Any]], shown: Mapping[str, str]) -> str:
    """What each contender gains on even ticks, in words."""
    lines = []
    for name, title in shown.items():
        gains = [row[name] - even_of(row) for row in rows]
        losing = [row for gain, row in zip(gains, rows, strict=True) if gain < -ALIKE]
        certain = sum(_seen(row, name).high < -ALIKE for row in losing)
        lines.append(
            f"- {title} against even ticks: {gained(gains)}, and in {certain} of them with the whole interval of 95 % where rounding to 8 bits is counted"
        )
    return "\n".join(lines)


def _expected(rows: list[dict[str, Any]], shown: Mapping[str, str]) -> str:
    """How far the expected error of each contender is from the measured one, in words."""
    return "\n".join(
        f"- {title}: {_ratios([(row['expected'][name], row['measured'][name]) for row in rows])}"
        for name, title in shown.items()
    )


def _above(rows: list[dict[str, Any]]) -> str:
    """What measuring a pipeline adds to `speedup=`, by the number of computed ticks, in words."""
    counts = sorted({row["ticks"] for row in rows}, reverse=True)
    of = [[row for row in rows if row["ticks"] == count] for count in counts]
    said = []
    for name, title in MEASURED.items():
        gains = (f"{median(row[name] - row['prior'] for row in alike):+.1f}" for alike in of)
        said.append(f"{title} {' / '.join(gains)} dB")
    samples = ([(row["samples"]["tuned"], row["samples"]["prior"]) for row in alike] for alike in of)
    limits = (f"[{low:+.1f}, {high:+.1f}]" for low, high in map(interval_of_gain, samples))
    where = " / ".join(map(str, counts))
    return f"- against `speedup=`, the median over testbeds with {where} ticks: {'; '.join(said)}. Intervals of 95 %, `tune`, over samples: {' / '.join(limits)}"


def _seen(row: Mapping[str, Any], name: str) -> Difference:
    """What a contender gains on the better even ticks, sample by sample, as far as it shows in 8 bits."""
    better = max(EVEN, key=row.__getitem__)
    one, even = (np.minimum(row["samples"][of], ROUNDING) for of in (name, better))
    return Difference(*mean_with_interval(one - even))


def unguided_table() -> str:
    """A row for each testbed and speed-up of runs without guidance; and what `speedup=` gains on even ticks there."""
    found, shown = stored("unguided"), {"prior": SHOWN["prior"]}
    rows = [(testbed, row) for testbed, result in found.items() for row in result["rows"]]
    alone = [row for _, row in rows]
    result = next(iter(found.values()))
    header = result["header"]
    return (
        f"{_beside_even(rows, shown)}\n\n{_differences(alone, shown)}\n"
        f"- {_ratios([(row['expected']['prior'], row['measured']['prior']) for row in alone])}\n\n"
        f"{result['samples']} samples of {alone[0]['steps']} steps, {header['device']}, {header['date']}."
    )


def weak_guidance_table() -> str:
    """A row for each testbed and speed-up of runs that guidance amplifies little; what `speedup=` gains there, and what it gains on plans for usual guidance."""
    found = stored("weak_guidance")
    shown = {"usual": "planned for usual guidance", "prior": SHOWN["prior"]}
    rows = [(testbed, row) for testbed, result in found.items() for row in result["rows"]]
    alone = [row for _, row in rows]
    result = next(iter(found.values()))
    header, amplified = result["header"], [row["amplification"] for row in alone]
    least, largest = (bound(one["prior"] for one in amplified) for bound in (min, max))
    ratios = _expected(alone, shown)
    return (
        f"{_beside_even(rows, shown)}\n\n{_differences(alone, shown)}\n"
        f"- `speedup=` against plans for usual guidance: {gained([row['prior'] - row['usual'] for row in alone])}\n{ratios}\n\n"
        f"A guidance scale of {alone[0]['scale']:g} amplifies {least:.1f} to {largest:.1f} times here, and usually {amplified[0]['usual']:.1f} times. "
        f"{result['samples']} samples of {alone[0]['steps']} steps, {header['device']}, {header['date']}."
    )


def threshold_table() -> str:
    """A row for each testbed and threshold; and how far expected errors are from measured ones."""
    found = stored("threshold")
    rows = [(testbed, row) for testbed, result in found.items() for row in result["rows"]]
    head = [
        "testbed", "threshold", "ticks of 50", "expected error", "measured error", "dB to the full run", "evenly spaced",
        "as many plain steps",
    ]  # fmt: skip
    lines = (
        [
            testbed, f"{row['threshold']:g}", str(row["ticks"]), f"{row['expected']:.2%}", f"{row['measured']:.2%}",
            *(f"{row[name]:.1f}" for name in ("psnr", "even", "fewer_steps")),
        ]
        for testbed, row in rows
    )  # fmt: skip
    gains = [row["psnr"] - row["even"] for _, row in rows if row["ticks"] < row["steps"]]
    result = next(iter(found.values()))
    header = result["header"]
    return (
        f"{markdown_table(head, named_once(lines))}\n\n"
        f"- against even ticks: {gained(gains)}\n"
        f"- {_ratios([(row['expected'], row['measured']) for _, row in rows])}\n\n"
        f"{result['samples']} samples, {header['device']}, {header['date']}."
    )


def learned_weights_table() -> str:
    """A row for each testbed and number of ticks: what weights gain that were learned through whole runs."""
    found = stored("learned_weights")
    rows = [(testbed, row) for testbed, result in found.items() for row in result["rows"]]
    gains = {name: [row[name][1] - row[name][0] for _, row in rows] for name in ("learned_on", "others")}
    head = ["testbed", "ticks", "on the samples that were learned on", "on others"]
    lines = (
        [testbed, str(row["ticks"]), *(f"{gains[name][i]:+.1f}" for name in gains)]
        for i, (testbed, row) in enumerate(rows)
    )
    result = next(iter(found.values()))
    header = result["header"]
    return (
        f"{markdown_table(head, named_once(lines))}\n\nMedian {median(gains['learned_on']):+.1f} and {median(gains['others']):+.1f} dB. "
        f"{result['learned_on']} and {result['samples']} samples of {rows[0][1]['steps']} steps, {header['device']}, {header['date']}."
    )


def two_denoisers_table() -> str:
    """A row for each speed-up of two denoisers that follow one another."""
    result = stored("two_denoisers")["wan"]
    head = ["ticks", "evenly spaced", "`speedup=`", "own covariance", "as many plain steps"]
    lines = (
        [
            str(row["ticks"]),
            *(f"{figure:.1f}" for figure in (even_of(row), row["prior"], row["own"], row["fewer_steps"])),
        ]
        for row in result["rows"]
    )
    header, row = result["header"], result["rows"][0]
    return (
        f"{markdown_table(head, lines)}\n\nThe second denoiser takes over at tick {row['handovers'][0]} of {row['steps']}. "
        f"{result['samples']} samples, {header['device']}, {header['date']}."
    )


def _ratios(errors: Sequence[tuple[float, float]]) -> str:
    """How far expected errors are from measured ones, in words; of pairs of both."""
    ratios = [measured / expected for expected, measured in errors if expected]
    if not ratios:
        return "no error is expected in any row"
    near = sum(0.5 <= ratio <= 2 for ratio in ratios)
    return (
        f"measured over expected error: median {median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}; within a factor of two in "
        f"{near} of {len(ratios)} rows"
    )
