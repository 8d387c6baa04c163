"""RunReport: what a call of an accelerated target computed and reused, why, and how much memory the cache held."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffcache.reports.freezing import frozen
from diffcache.reports.nothing_reused import counted, ended_early, why_nothing_was_reused
from diffcache.reports.records import MIXED, CallRecord, RunRecord, share_of
from diffcache.reports.timeline import draw_timeline, timeline_svg
from diffcache.schedulers.artifact import json_text
from diffcache.schedulers.schedule import EXPECTED_ERROR, Schedule
from diffcache.schedulers.steps import Decision

NOT_SEEN = (
    "no call of the denoiser was seen: it ran outside this target or before begin_step, "
    "or compiled into something larger"
)
BROKEN_OFF = "the run was broken off in the first call of its denoiser"
NO_METHOD = "none"
"""The method of a server's request without one."""
NOT_CACHED = "not cached, and its calls are not counted: give the request config= or speedup="
NOT_OBSERVED = "steps not observed: the noise scheduler was not stepped during the call"
NOT_FINITE = "outputs were not finite (NaN or infinity): look at the model's own, with paused(pipe)"


class RunReport:
    """Report on the last call of an accelerated target; empty before the first call.

    A pipeline call with several denoising loops (long videos in chunks) has several runs. The report counts their ticks
    on: the first tick of the second run follows the last one of the first. Runs of one loop, which was begun anew after an error,
    share their ticks.

    Args:
        method: the method's name.
        options: the method's options.
        records: one for each run.
        one_loop: all runs are of one loop.
    """

    def __init__(
        self, method: str, options: dict[str, Any], records: Sequence[RunRecord], *, one_loop: bool = False
    ) -> None:
        self.method = method
        self.options = options
        self.records = list(records)
        self._one_loop = one_loop

    @property
    def runs(self) -> list["RunReport"]:
        """A report for each run of the call."""
        return [RunReport(self.method, self.options, [record]) for record in self.records]

    @property
    def calls(self) -> list[CallRecord]:
        """Every denoiser call in order. Their ticks count from 0 in each run."""
        return [call for _, call in self._numbered()]

    @property
    def num_ticks(self) -> int:
        """Number of ticks of all runs, up to the last in which a denoiser was called."""
        return 1 + max((tick for tick, _ in self._numbered()), default=-1)

    @property
    def branches(self) -> list[str]:
        """The guidance passes, in order of appearance."""
        return list(dict.fromkeys(call.branch for call in self.calls))

    @property
    def sites(self) -> list[str]:
        """The cached sites in order of appearance: denoisers ("transformer"), or sites inside ("transformer.blocks.3")."""
        return list(dict.fromkeys(call.site for call in self.calls if call.cached))

    @property
    def decisions(self) -> Tensor:
        """Bool [tick, branch, site]: True where any sample was computed. `called` tells what was called at all."""
        return self._table(lambda call: call.computed > 0)

    @property
    def called(self) -> Tensor:
        """Bool [tick, branch, site]: True where the denoiser was called, computed or not."""
        return self._table(lambda call: True)

    @property
    def computed_ticks(self) -> list[int]:
        """The ticks in which a cached site was computed."""
        return sorted({tick for tick, call in self._numbered() if call.cached and call.computed > 0})

    @property
    def compute_fraction(self) -> float:
        """The share of the work that was computed, calls weighted by samples and parameters; 1.0 before any run."""
        return share_of(self.calls)

    @property
    def speedup(self) -> float:
        """1 / compute_fraction: the speed-up of a denoising loop that spends all its time in the denoiser."""
        return 1 / self.compute_fraction if self.compute_fraction else float("inf")

    @property
    def drift(self) -> float | None:
        """Estimated error of the reused outputs, as a fraction of the output, mean over all ticks; None where unknown.

        At each computed tick the value that would have been reused is compared with the computed one. The error has grown
        to this since the computed tick before, so each reused tick between the two is estimated at half of it.
        """
        if not any(record.errors for record in self.records) or not self._is_finite:
            return None
        return sum(record.reuse_error for record in self.records) / self.num_ticks

    @property
    def expected_error(self) -> float | None:
        """Expected root mean square difference to the full run's result, as a fraction of its contrast; None if the method expects none.

        The contrast is the result's standard deviation. The method `trajectory` plans for half of its threshold at most, and its
        schedules say the error again. docs/measured/trajectory.md compares it with measured errors.
        """
        expected = [record.expected_error for record in self.records]
        return max((error for error in expected if error is not None), default=None)

    @property
    def cache_bytes(self) -> int:
        """The most bytes that the cache held at once on the device that computes."""
        return max((record.cache_bytes for record in self.records), default=0)

    @property
    def host_bytes(self) -> int:
        """The most bytes that the cache held at once in host memory (`cache_device="cpu"`)."""
        return max((record.host_bytes for record in self.records), default=0)

    @property
    def reasons(self) -> dict[str, list[tuple[int, str, str]]]:
        """(tick, branch, site) of every call that a guard made compute, by reason."""
        found: dict[str, list[tuple[int, str, str]]] = {}
        for tick, call in self._numbered():
            if call.reason is not None:
                found.setdefault(call.reason, []).append((tick, call.branch, call.site))
        return found

    @property
    def notes(self) -> list[str]:
        """What the user should know.

        It tells that nothing was reused, and why; that steps could not be observed; that a run was broken off; why there was no hindsight; what
        reuse costs where the noise scheduler adds fresh noise; what was done to keep to `max_cache_bytes`; that outputs were not finite.
        """
        if self.method == NO_METHOD:
            return [NOT_CACHED]
        if not self.records:
            return ["no run yet"]
        if not self.calls:
            return [BROKEN_OFF if any(record.models for record in self.records) else NOT_SEEN]
        if not any(record.observed for record in self.records):
            return [f"nothing was reused: {NOT_OBSERVED}"]
        unused = all(call.computed == 1 for call in self.calls)
        found = [
            note
            for record in self.records
            for note in (*(() if unused else record.remarks.values()), *record.notes)
        ]
        noted = dict.fromkeys(found if self._is_finite else [NOT_FINITE, *found])
        if unused:
            why = why_nothing_was_reused(self._numbered(), self.records, self.options)
            return [f"nothing was reused: {why}", *noted]
        return [note for note in (ended_early(self.records[-1]), self.cost_of_noise) if note is not None] + [
            *noted
        ]

    @property
    def _is_finite(self) -> bool:
        """Whether all errors of reuse are numbers: outputs that are not finite have none."""
        found = (errors for record in self.records for *_, errors in record.errors)
        return all(math.isfinite(error) for errors in found for error in errors.values())

    @property
    def cost_of_noise(self) -> str | None:
        """What reuse costs where the noise scheduler adds fresh noise, and the method wanted hindsight; None elsewhere."""
        costs = (
            record.fresh_noise.cost
            for record in self.records
            if record.fresh_noise is not None
            and record.predictor.get("hindsight")
            and any(call.computed < 1 for call in record.calls)
        )
        return next(costs, None)

    def summary(self) -> str:
        """A few lines to read."""
        if not self.calls:
            return f"{self.method}: {self.notes[0]}"
        ticks = len(self.computed_ticks)
        head = f"{self.method}: {ticks} of {self.num_ticks} ticks computed"
        work = f"{self.compute_fraction:.1%} of the work ({self.speedup:.2f}x less)"
        in_host = f" and {self.host_bytes / 2**20:.2f} MiB in host memory" if self.host_bytes else ""
        lines = [f"{head}, {work}, at most {self.cache_bytes / 2**20:.2f} MiB cached{in_host}"]
        for branch in self.branches:
            lines.append(f"  {branch:>8} {self._timeline(branch)}")
        for reason, calls in self.reasons.items():
            lines.append(f"  computed by guard: {counted(reason, {tick for tick, *_ in calls})}")
        if self.expected_error:  # 0 where no tick was reused
            error = f"{self.expected_error:.2%}" if self.expected_error < 1 else "more than 100%"
            lines.append(f"  expected error of the result: {error}")
        if self.drift is not None:
            lines.append(f"  estimated error of the output: {self.drift:.2%} (mean over ticks)")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def plot(self, path: str | Path) -> Path:
        """Draws which tick was computed or reused at each branch and site, as PNG or SVG by the path's ending.

        Returns:
            The path.

        Raises:
            ConfigError: the path has another ending, or none.
            ImportError: a PNG is asked for and matplotlib is not installed; the message says how.
        """
        title = f"{self.method}: {self.compute_fraction:.0%} of the work computed"
        return draw_timeline(title, self.num_ticks, self._rows(), Path(path))

    def timeline(self) -> str:
        """The same as an `<svg>` element, for a page or a notebook (`IPython.display.HTML`)."""
        return timeline_svg(self.num_ticks, self._rows())

    def _rows(self) -> dict[str, dict[int, str]]:
        """By site and branch, what was done at each tick, in the words of `diffcache.reports.timeline.KINDS`."""
        forced = {call for calls in self.reasons.values() for call in calls}
        several = len(self.branches) > 1
        rows: dict[str, dict[int, str]] = {}
        for tick, call in self._numbered():
            if call.cached:
                guarded = (tick, call.branch, call.site) in forced
                some = call.mark == Decision.ROWS.value
                computed = "some tokens" if some else "by guard" if guarded else "computed"
                done = computed if call.computed else "reused"
                label = f"{call.site} · {call.branch}" if several else call.site
                rows.setdefault(label, {})[tick] = done
        return rows

    def save(self, path: str | Path) -> Path:
        """Writes the whole report as JSON, and returns the path. Numbers that are not finite become null."""
        data: dict[str, Any] = {
            "method": self.method,
            "options": self.options,
            "compute_fraction": self.compute_fraction,
            "cache_bytes": self.cache_bytes,
            "host_bytes": self.host_bytes,
            "notes": self.notes,
            "runs": [record.as_dict() for record in self.records],
        }
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json_text(data))
        return path

    def to_schedule(self) -> Schedule:
        """The run's decisions as a schedule that can be saved, shared and replayed.

        Raises:
            ScheduleError: there is not exactly one run, each sample had its own decisions (`per_sample`), or the method chose tokens by itself.
        """
        measured = {
            "compute_fraction": self.compute_fraction,
            "cache_bytes": self.cache_bytes,
            **({} if self.expected_error is None else {EXPECTED_ERROR: self.expected_error}),
        }
        return frozen(self.method, self.options, self.records, measured)

    def __repr__(self) -> str:
        return f"<RunReport {self.summary().splitlines()[0]}>"

    def _numbered(self) -> list[tuple[int, CallRecord]]:
        """Every call, with its tick counted on over all runs, unless these are of one loop."""
        numbered, first = [], 0
        for record in self.records:
            numbered += [(first + call.tick, call) for call in record.calls]
            first = 0 if self._one_loop else 1 + max((tick for tick, _ in numbered), default=-1)
        return numbered

    def _table(self, holds: Callable[[CallRecord], bool]) -> Tensor:
        """Bool [tick, branch, site]: True where `holds` is true of a call."""
        branches, sites = self.branches, self.sites
        table = torch.zeros(self.num_ticks, len(branches), len(sites), dtype=torch.bool)
        for tick, call in self._numbered():
            if call.cached and holds(call):
                table[tick, branches.index(call.branch), sites.index(call.site)] = True
        return table

    def _timeline(self, branch: str) -> str:
        """One character for each tick: the sites' mark, "+" where they differ, "." where the branch was not called."""
        marks = ["."] * self.num_ticks
        for tick, call in self._numbered():
            if call.cached and call.branch == branch:
                marks[tick] = call.mark if marks[tick] in (".", call.mark) else MIXED
        return "".join(marks)
