"""The table of docs/serving.md: requests per second and quality, by who owns the cache."""

from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import read_result, result_path

BEGUN_ANEW = "one cache, begun anew"
"""As fast as "one cache" within the noise; the page leaves it out of the table."""

SHORTER = {"a cache for each request": "own caches", "served without caches": "served, no cache"}
"""Of the stored names."""


def serving_table() -> str:
    """A row for each contender and setting."""
    result = read_result(result_path("serving", "sd3"))
    rows, header = result["rows"], result["header"]
    head = ["", "setting", "calls reused", "requests per second", "PSNR, dB", "own time per batch, ms"]
    lines = [
        [
            SHORTER.get(row["contender"], row["contender"]),
            row["setting"],
            f"{row['hit_rate']:.0%}",
            f"{row['requests_per_second']:.2f}",
            "" if row["psnr"] is None else f"{row['psnr']:.1f}",
            f"{row['own_ms']:.1f}" if row["own_ms"] else "",
        ]
        for row in rows
        if row["contender"] != BEGUN_ANEW
    ]
    return (
        f"{markdown_table(head, lines)}\n\n"
        f"{result['requests']} requests, {header['device']}, {header['date']}. Requests per second of processor time differ by up to a "
        "quarter from run to run. Own time is wall time."
    )
