"""The table of docs/measured/memory.md: the peak memory of a guidance pass's first call."""

from diffcache.evals.experiments.first_call import FirstCall
from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import stored

HEAD = (
    "denoiser", "site", "plain call", "stored", "one block", "first call", "beside",
)  # fmt: skip
SITES = ("sub-layer", "depth 1")
"""Those that the page shows."""


def first_call_table() -> str:
    """A row for each denoiser and site, in KiB."""
    lines = []
    for name, result in stored("first_call").items():
        for found in (FirstCall(**row) for row in result["rows"] if row["site"] in SITES):
            sizes = (found.plain, found.stored, found.block, found.learning, found.kept_on_top)
            lines.append([name, found.site, *(f"{size / 1024:,.0f}" for size in sizes)])
    return markdown_table(HEAD, lines)
