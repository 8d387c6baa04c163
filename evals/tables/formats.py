"""The table of docs/measured/memory.md: what storing the cache in fewer bits saves and costs."""

from diffcache.evals.harness.markdown import markdown_table, named_once
from diffcache.evals.harness.results import stored

HEAD = (
    "testbed", "method", "KiB as computed", "KiB in int8", "PSNR", "bfloat16", "int8", "float8", "int8, worst",
)  # fmt: skip
SHOWN = ("bfloat16", "int8", "float8")
METHODS = ("order 1, watched", "taylorseer")
"""Those that the page shows."""


def formats_table() -> str:
    """A row for each testbed and method: KiB in two formats, and the dB that each format loses."""
    lines = []
    for testbed, result in stored("formats").items():
        for method in METHODS:
            of = {row["format"]: row for row in result["rows"] if row["method"] == method}
            first = of["as computed"]
            sizes = [f"{of[name]['cache_bytes'] / 1024:,.0f}" for name in ("as computed", "int8")]
            lost = [f"{-of[name]['lost']:+.2f}" for name in SHOWN]
            worst = f"{-of['int8']['most_lost']:+.2f}"
            lines.append([testbed, method, *sizes, f"{first['psnr']:.1f}", *lost, worst])
    return markdown_table(HEAD, named_once(lines))
