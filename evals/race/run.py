"""Runs the race on one testbed: tries all settings on few samples, chooses on more, and scores what was chosen on others.

Every measurement is saved when it comes. A race that was interrupted goes on where it was.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from diffcache.evals.harness.unseen import judged_on
from diffcache.evals.race.budgets import budgets_for
from diffcache.evals.race.contender import Contender, Options, RaceSetup
from diffcache.evals.race.frontier import Figure, Pair, nearest_below, pair_for, worth_choosing
from diffcache.evals.race.result import RaceResult
from diffcache.evals.race.row import Row
from diffcache.evals.race.track import FULL, Track
from diffcache.evals.testbeds import splits
from diffcache.profiling.recording.shares import TooLittle
from diffcache.schedulers.errors import TargetError

MOST = 0.8
"""A setting that computes more than this share of the full run is of no use for any budget."""
NEAR = 3.0
"""How far below the best of its group a contender may be on the first samples, in dB, to race on."""


def to_full(row: Row) -> Sequence[float]:
    return row.psnr


def to_truth(row: Row) -> Sequence[float]:
    return row.truth


FIGURES: Mapping[str, Figure] = {"full": to_full, "truth": to_truth}
CHOSEN_ON: Mapping[Figure, splits.Use] = {to_full: "choose", to_truth: "try"}
"""Pictures of 1000 steps are dear: by the distance to these, settings are chosen on four samples."""


class Race:
    """The race on one testbed.

    Args:
        setup: testbed and steps.
        path: of the result; a race that lies there goes on.
        header: of a new result.
        kept: folder for pictures of 1000 steps; None: nothing is compared with these.
    """

    def __init__(self, setup: RaceSetup, path: Path, header: dict[str, Any], kept: Path | None) -> None:
        self.setup, self.path = setup, path
        self.track = Track(setup, kept)
        self.header = header
        fresh = RaceResult(header, setup.testbed, setup.steps)
        self.result = RaceResult.load(path) if path.exists() else fresh

    def run(self, contenders: Sequence[Contender]) -> RaceResult:
        """Measures what is not measured yet."""
        with judged_on(self.setup.testbed):
            full = next(iter(self.result.of(FULL, "score")), None)
            if full is None or (self.track.has_truth("score") and not full.truth):
                self._add(self.track.full_row("score"), full)
            for group in tqdm(_groups(contenders), desc=self.setup.testbed, mininterval=10):
                self._race(group)
        self.result.save(self.path)
        return self.result

    def _race(self, group: Sequence[Contender]) -> None:
        """Contenders of one group: each is tried, the best are chosen from, and what was chosen is scored."""
        if group[0].chosen_by == ("truth",) and not self.track.has_truth("try"):
            return
        for contender in group:
            self._all(contender, "try" if contender.kind == "swept" else "score")
        for contender in group:
            if "full" in contender.chosen_by:
                for row in _distinct(self._candidates(contender, group)):
                    self._measured(contender, row.options, "choose")
        for contender in group:
            for row in _distinct(chosen_rows(self.result, contender)):
                self._measured(contender, row.options, "score")

    def _all(self, contender: Contender, part: splits.Use) -> None:
        """All settings; each sweep up to what computes too much."""
        for sweep in contender.sweeps(self.setup):
            for options in sweep:
                row = self._measured(contender, options, part)
                if row is None or row.compute > MOST:
                    break

    def _candidates(self, contender: Contender, group: Sequence[Contender]) -> Iterator[Row]:
        """Settings to choose from: of the best of a group, and of those near it."""
        for budget in budgets_for(self.setup.steps):
            reached = {one.full_name: self._tried(one, budget) for one in group}
            if reached[contender.full_name] >= max(reached.values()) - NEAR:
                rows = self.result.of(contender.full_name, "try")
                yield from worth_choosing(rows, 1 / budget, to_full)

    def _tried(self, contender: Contender, budget: float) -> float:
        pair = pair_for(self.result.of(contender.full_name, "try"), 1 / budget, to_full)
        return -math.inf if pair is None else pair.mean(1 / budget, to_full)

    def _measured(self, contender: Contender, options: Options, part: splits.Use) -> Row | None:
        """The row of a setting; None where the contender does not attach.

        Whatever a peer raises is published as its reason; our own methods may only refuse the target or the budget.
        """
        name, written = contender.full_name, _written(options)
        found = self.result.find(name, options, part)
        if found is not None and (found.truth or not self.track.has_truth(part)):
            return found
        if self.result.refused.get(name, {}).get(written):
            return None
        refusal = (TargetError, TooLittle) if contender.ours else Exception
        try:
            row = self.track.measured(contender, options, part)
        except refusal as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            self.result.refused.setdefault(name, {})[written] = reason
            return None
        self._add(row, found)
        return row

    def _add(self, row: Row, old: Row | None = None) -> None:
        """Saves a row, in the place of an old one that was measured without pictures of 1000 steps."""
        self.result.rows = [other for other in self.result.rows if other is not old] + [row]
        self._note_session(row.contender)
        self.result.save(self.path)

    def _note_session(self, name: str) -> None:
        if self.header["commit"] == self.result.header["commit"]:
            return
        notes = self.result.renewed
        if not notes or notes[-1]["commit"] != self.header["commit"]:
            notes.append({"names": [], **self.header})
        if name not in notes[-1]["names"]:
            notes[-1]["names"].append(name)


def pair_on(result: RaceResult, contender: str, budget: float, figure: Figure = to_full) -> Pair | None:
    """The settings that were chosen for a budget, with their scores; None where there are none.

    Who has one setting for each budget has nothing to choose: then it is the one that comes nearest to the budget from below.
    """
    if not result.of(contender, "try"):
        return nearest_below(result.of(contender, "score"), 1 / budget)
    chosen = pair_for(result.of(contender, CHOSEN_ON[figure]), 1 / budget, figure)
    if chosen is None:
        return None
    low, high = (result.find(contender, row.options, "score") for row in (chosen.low, chosen.high))
    return None if low is None or high is None else Pair(low, high)


def chosen_rows(result: RaceResult, contender: Contender) -> Iterator[Row]:
    """The chosen settings of all budgets, by all that they are chosen by."""
    for by in contender.chosen_by:
        figure = FIGURES[by]
        rows = [row for row in result.of(contender.full_name, CHOSEN_ON[figure]) if figure(row)]
        for budget in budgets_for(result.steps):
            pair = pair_for(rows, 1 / budget, figure)
            if pair is not None:
                yield from (pair.low, pair.high)


def _groups(contenders: Sequence[Contender]) -> list[list[Contender]]:
    """In the order of their first contenders; who has no group is alone."""
    found: dict[str, list[Contender]] = {}
    for contender in contenders:
        found.setdefault(contender.group or contender.full_name, []).append(contender)
    return list(found.values())


def _distinct(rows: Iterator[Row]) -> list[Row]:
    found: list[Row] = []
    for row in rows:
        if not any(row.options == other.options for other in found):
            found.append(row)
    return found


def _written(options: Options) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())
