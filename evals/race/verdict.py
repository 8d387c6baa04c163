"""Who won: the best lap of each within a budget of compute, and by how much ours is ahead."""

from collections.abc import Iterable
from dataclasses import dataclass

from diffcache.evals.race.course import Lap
from diffcache.evals.race.ours import HOLDING
from diffcache.evals.race.outcome import Outcome

BUDGETS = (1.5, 2.0, 3.0)
"""Times less compute than the full run."""
SLACK = 0.01
"""Of the full run's compute, by which a budget may be overrun: steps are whole."""


@dataclass(frozen=True)
class Margin:
    """One row of the verdict: at a budget, the best of everybody by PSNR to the full run.

    Attributes:
        ours, default, holding: best of ours, of our default at any threshold, of ours that only hold.
        theirs: best of one peer; None where nothing of it fits the budget.
        fewer: the better of the plain pipelines with fewer steps.
    """

    testbed: str
    budget: float
    peer: str
    ours: Lap
    default: Lap | None
    holding: Lap | None
    theirs: Lap | None
    fewer: Lap

    @property
    def over_peer(self) -> float | None:
        """dB."""
        return None if self.theirs is None else self.ours.psnr_full - self.theirs.psnr_full

    @property
    def over_fewer(self) -> float:
        """dB."""
        return self.ours.psnr_full - self.fewer.psnr_full


def steps_within(budget: float, steps: int) -> int:
    """The most steps of the plain pipeline that a budget allows."""
    return int((1 / budget + SLACK) * steps)


def best(laps: Iterable[Lap], budget: float) -> Lap | None:
    """The lap nearest to the full run among those within a budget; None where none is."""
    within = [lap for lap in laps if lap.compute <= 1 / budget + SLACK]
    return max(within, key=lambda lap: lap.psnr_full, default=None)


def margins(outcome: Outcome) -> list[Margin]:
    """One row for each budget and peer.

    Raises:
        ValueError: nothing of ours, or no run with fewer steps, is within a budget.
    """
    rows = []
    own = [lap for lap in outcome.laps if lap.package == "diffcache"]
    for budget in BUDGETS:
        ours, fewer = best(own, budget), best(outcome.fewer, budget)
        if ours is None or fewer is None:
            raise ValueError(f"{outcome.testbed}: nothing to compare at {budget:g}x; sweep lower settings.")
        default = best((lap for lap in own if lap.name == "default"), budget)
        holding = best((lap for lap in own if lap.name in HOLDING), budget)
        for peer in outcome.peers:
            theirs = best((lap for lap in outcome.laps if lap.package == peer), budget)
            rows.append(Margin(outcome.testbed, budget, peer, ours, default, holding, theirs, fewer))
    return rows


HEAD = (
    "| testbed | budget | ours | dB | default | hold only | peer | its best | dB | ours minus peer "
    "| fewer steps | dB | ours minus fewer steps |\n" + "|---" * 13 + "|\n"
)


def verdict_table(outcomes: Iterable[Outcome]) -> str:
    """The margins as a Markdown table; PSNR in dB to the full run."""
    return HEAD + "\n".join(_row(margin) for outcome in outcomes for margin in margins(outcome))


def summary_table(outcomes: Iterable[Outcome]) -> str:
    """One line for each testbed and budget: the default, and by how much it and the best of ours are ahead."""
    head = (
        "| testbed | budget | default | minus best peer | minus fewer steps | best of ours minus best peer |\n"
        + "|---" * 6
        + "|\n"
    )
    return head + "\n".join(_summary(rows) for outcome in outcomes for rows in _by_budget(margins(outcome)))


def sweep_table(outcome: Outcome) -> str:
    """Every lap as a Markdown table, by package and method."""
    head = (
        "| package | method | setting | compute | loop time | PSNR to full | SSIM | PSNR to 1000 steps | KID "
        "| cache |\n" + "|---" * 10 + "|\n"
    )
    return head + "\n".join(
        f"| {lap.package or 'plain'} | {lap.name} | {lap.knob} {lap.setting:g} | {lap.compute:.1%} "
        f"| {'' if lap.loop_time is None else format(lap.loop_time, '.0%')} | {lap.psnr_full:.1f} "
        f"| {lap.ssim_full:.4f} | {lap.psnr_reference:.1f} | {lap.kid:.3f} | {lap.cache_bytes / 2**20:.2f} MiB |"
        for lap in [outcome.full, *outcome.fewer, *outcome.laps]
    )


def _by_budget(rows: list[Margin]) -> list[list[Margin]]:
    return [[row for row in rows if row.budget == budget] for budget in BUDGETS]


def _summary(rows: list[Margin]) -> str:
    """Of one testbed and budget, over all peers."""
    first = rows[0]
    theirs = max((row.theirs for row in rows if row.theirs), key=lambda lap: lap.psnr_full, default=None)

    def ahead(lap: Lap | None, of: Lap | None) -> str:
        return "" if lap is None or of is None else f"{lap.psnr_full - of.psnr_full:+.1f}"

    at = "" if first.default is None else f"{first.default.psnr_full:.1f} at {first.default.compute:.0%}"
    return (
        f"| {first.testbed} | {first.budget:g}x | {at} | {ahead(first.default, theirs)} "
        f"| {ahead(first.default, first.fewer)} | {ahead(first.ours, theirs)} |"
    )


def _row(margin: Margin) -> str:
    def cells(lap: Lap | None) -> str:
        return "none fits | " if lap is None else f"{lap.name} | {lap.psnr_full:.1f}"

    def figure(lap: Lap | None) -> str:
        return "" if lap is None else f"{lap.psnr_full:.1f}"

    ahead = "" if margin.over_peer is None else f"{margin.over_peer:+.1f}"
    return (
        f"| {margin.testbed} | {margin.budget:g}x | {cells(margin.ours)} | {figure(margin.default)} "
        f"| {figure(margin.holding)} | {margin.peer} | {cells(margin.theirs)} | {ahead} "
        f"| {cells(margin.fewer)} | {margin.over_fewer:+.1f} |"
    )
