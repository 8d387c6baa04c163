"""docs/searched.md: every search that was measured."""

from collections.abc import Mapping

from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.harness.results import Result, stored

HEAD = """# Searched schedules, measured

PSNR in dB to the full run of 24 steps, medians, on prompts, seeds or observations that no search saw. `evals/results/search/`, `search_policy/`, `screening/` and
`transfer/` have the commands, and more methods. An older version measured this: it drew lines over raw noise levels.

With `hold` and hindsight, dynamic programming ("dp") is {least:.1f} to {most:.1f} dB above as many even ticks on dit and sd, and below them on flux. "Evolved" begins with
that, and is only taken where further samples confirm it. Routers of 24 training runs stay near their start; published ones have thousands. Search again for another
number of steps: dit's schedule, resampled, is {resampled} dB below uniform reuse there (`python scripts/search/transfer.py`)."""

SHARES = ("54%", "38%")
"""Of the work."""
TITLES = {"policy": "A robot policy"}
"""Of the sections, by result."""
SEARCHES = {
    f"{testbed}_{predictor}{'_hindsight' if hindsight else ''}": kind + (", hindsight" if hindsight else "")
    for testbed in ("dit", "flux", "sd")
    for predictor, kind in (("hold", "hold"), ("order1", "order 1"))
    for hindsight in (False, True)
}
"""Results of whole denoisers, and what the page calls them."""


def searched_page() -> str:
    """The text of the page."""
    searches = stored("search")
    sections = {name: (result, _policy(result)) for name, result in stored("search_policy").items()}
    parts = [
        f"## {TITLES[name]}\n\n`{result['header']['command']}`\n\n{text}"
        for name, (result, text) in sections.items()
    ]
    gains = _gains(searches)
    head = HEAD.format(least=min(gains), most=max(gains), resampled=_resampled(stored("transfer")["dit"]))
    return "\n\n".join([head, _summary(searches), *parts]) + "\n"


def _gains(searches: Mapping[str, Result]) -> list[float]:
    """What dynamic programming gains on as many even ticks with `hold` and hindsight on dit and sd, in dB."""
    found = []
    for testbed in ("dit", "sd"):
        psnrs = {row["name"]: row["psnr_full"] for row in searches[f"{testbed}_hold_hindsight"]["rows"]}
        found += [psnrs[f"dp, shared, {share}"] - psnrs[f"even, {share}"] for share in SHARES]
    return found


def _resampled(result: Result) -> str:
    """How far a schedule at other numbers of steps is below uniform reuse, in dB."""
    psnrs = {row["name"]: row["psnr_full"] for row in result["rows"]}
    ends = {name.split(":")[0]: name for name in psnrs if "uniform" in name}
    lost = [psnrs[uniform] - psnrs[f"{steps}: the schedule"] for steps, uniform in ends.items()]
    return " and ".join(f"{loss:.1f}" for loss in lost if loss > 0)


def _policy(result: Result) -> str:
    rows = (
        [row["name"], f"{row['compute']:.0%}", f"{row['psnr']:.1f}", f"{row['success']:.0%}"]
        for row in result["rows"]
    )
    return markdown_table(["schedule", "compute", "PSNR of the actions", "goal reached"], rows)


def _summary(searches: Mapping[str, Result]) -> str:
    """A row for each search: PSNR of as many even ticks, and of what was found, at each share of the compute."""
    ways = {"even ticks": "even, ", "dp": "dp, shared, ", "evolved": "evolved, "}
    head = ["search", *(f"{way}, {share}" for share in SHARES for way in ways)]
    lines = []
    for name, kind in SEARCHES.items():
        if name in searches:
            psnrs = {row["name"]: row["psnr_full"] for row in searches[name]["rows"]}
            cells = (_figure(psnrs.get(f"{begin}{share}")) for share in SHARES for begin in ways.values())
            lines.append([f"{name.split('_')[0]}, {kind}", *cells])
    return markdown_table(head, lines)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
