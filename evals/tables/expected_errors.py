"""The table of docs/measured/trajectory.md on how near expected errors come to measured ones, by what is known before a run."""

from statistics import median

from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import stored

KNOWN = {
    "prior": "nothing of the pipeline",
    "response": "its response",
    "covariance": "its covariance",
    "both": "both",
}
HEAD = (
    "known before the run", "measured over expected", "within a factor of two",
    "by what the run measured, too", "within a factor of two",
)  # fmt: skip


def expected_errors_table() -> str:
    """A row for each state of knowledge."""
    found = stored("expected_errors")
    rows = [row for result in found.values() for row in result["rows"]]
    lines = []
    for name, title in KNOWN.items():
        plain = [row["measured"] / row["expected"][name] for row in rows]
        told = [ratio / row["surprise"] for ratio, row in zip(plain, rows, strict=True)]
        lines.append([title, *_figures(plain), *_figures(told)])
    result = next(iter(found.values()))
    header = result["header"]
    return f"{markdown_table(HEAD, lines)}\n\n{len(found)} testbeds, {result['samples']} samples, {header['device']}, {header['date']}."


def _figures(ratios: list[float]) -> tuple[str, str]:
    near = sum(0.5 <= ratio <= 2 for ratio in ratios)
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", f"{near} of {len(ratios)}"
