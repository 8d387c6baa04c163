"""The table of docs/memory.md: the peak memory of a guidance pass's first call."""

from diffcache.evals.experiments.first_call import FirstCall
from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import stored

HEAD = (
    "denoiser", "site", "plain call", "stored", "one block", "first call, before", "now", "beside, before", "now",
)  # fmt: skip


def first_call_table() -> str:
    """A row for each denoiser and site, in KiB."""
    lines = []
    for name, result in stored("first_call").items():
        for then, now in zip(result["before"]["rows"], result["rows"], strict=True):
            before, after = FirstCall(**then), FirstCall(**now)
            sizes = (
                after.plain, after.stored, after.block,
                before.learning, after.learning, before.kept_on_top, after.kept_on_top,
            )  # fmt: skip
            lines.append([name, after.site, *(f"{size / 1024:,.0f}" for size in sizes)])
    return markdown_table(HEAD, lines)
