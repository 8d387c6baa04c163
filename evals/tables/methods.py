"""docs/results.md: every method on every testbed at matched compute."""

from collections.abc import Mapping

from diffcache.evals.harness.comparison import SHARES, TOLERANCE, Row, nearest
from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import stored

HEAD = """# Methods on the testbeds

Published methods at single settings, among them some that the [race](race.md) does not have (`python scripts/measure/methods.py`; every setting is in
`evals/results/methods/`). The default is in the race only.

PSNR in dB to the full run of 50 steps, and in brackets to 1000 steps, medians over {seeds}. A cell is the method's setting nearest to {share:.0%} of
the compute; a dash: none is within {tolerance:.0f} points of it, or the denoiser has no such site. "N steps" is the plain pipeline with fewer steps.

"hold" is `accelerate(pipe, "uniform", warmup_steps=3, interval=n)`; "order 1" adds `order=1, basis="output"`."""

SHARE = max(SHARES)
"""Of the compute; the stored results have less, too."""


def methods_page() -> str:
    """The text of the page."""
    results = stored("methods")
    seeds = _seeds({testbed: result["samples"] for testbed, result in results.items()})
    rows = {testbed: [Row(**row) for row in result["rows"]] for testbed, result in results.items()}
    columns = {testbed: nearest(found, SHARE) for testbed, found in rows.items()}
    head = HEAD.format(seeds=seeds, share=SHARE, tolerance=100 * TOLERANCE)
    return f"{head}\n\n{_table(columns)}\n"


def _seeds(samples: Mapping[str, int]) -> str:
    """How many seeds there are, and on which testbeds there are fewer."""
    most = max(samples.values())
    fewer = ", ".join(f"{testbed}: {count}" for testbed, count in samples.items() if count < most)
    return f"{most} seeds" + (f" ({fewer})" if fewer else "")


def _table(columns: dict[str, dict[str, Row]]) -> str:
    """Methods by the highest PSNR that they reach on a testbed."""
    best: dict[str, float] = {}
    for column in columns.values():
        for method, row in column.items():
            best[method] = max(best.get(method, 0.0), row.psnr_full)
    lines = (
        [method, *(_cell(column.get(method)) for column in columns.values())]
        for method in sorted(best, key=lambda method: -best[method])
    )
    return markdown_table(["method", *columns], lines)


def _cell(row: Row | None) -> str:
    return "-" if row is None else f"{row.psnr_full:.1f} ({row.psnr_reference:.1f})"
