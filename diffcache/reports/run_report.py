"""RunReport: what a call computed and reused, why, and what it held."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffcache.reports.freezing import freeze
from diffcache.reports.records import MIXED, CallRecord, RunRecord
from diffcache.schedulers.guards import NO_SIGNAL, NOTHING_STORED, TAIL, WARM_UP
from diffcache.schedulers.schedule import Schedule
from diffcache.schedulers.steps import Decision

NOT_SEEN = "no call of the denoiser was seen: it ran before begin_step, or compiled into something larger"
NOT_OBSERVED = "steps not observed: the noise scheduler was not stepped during the call"


class RunReport:
    """The last call of an accelerated target; empty before the first.

    A pipeline call with several denoising loops (long videos in chunks) has several runs. The tables lay them end
    to end: run 2's first tick follows run 1's last.
    """

    def __init__(self, method: str, options: dict[str, Any], records: Sequence[RunRecord]) -> None:
        self.method = method
        self.options = options
        self.records = list(records)

    @property
    def runs(self) -> list["RunReport"]:
        """One report for each denoising loop of the call."""
        return [RunReport(self.method, self.options, [record]) for record in self.records]

    @property
    def calls(self) -> list[CallRecord]:
        """Every denoiser call in order; their ticks count from the first run's first."""
        return [call for _, call in self._placed()]

    @property
    def num_ticks(self) -> int:
        """Ticks in which a denoiser was called, over all runs."""
        return 1 + max((tick for tick, _ in self._placed()), default=-1)

    @property
    def branches(self) -> list[str]:
        """The guidance passes, in order of appearance."""
        return list(dict.fromkeys(call.branch for call in self.calls))

    @property
    def sites(self) -> list[str]:
        """The places that were cached, in order of appearance: denoisers ("transformer"), or places inside them."""
        return list(dict.fromkeys(call.site for call in self.calls if call.cached))

    @property
    def decisions(self) -> Tensor:
        """Bool [tick, branch, site]: True where something was computed. See `called` for what was called at all."""
        return self._table(lambda call: call.computed > 0)

    @property
    def called(self) -> Tensor:
        """Bool [tick, branch, site]: True where the denoiser was called, computed or not."""
        return self._table(lambda call: True)

    @property
    def computed_ticks(self) -> list[int]:
        """The ticks in which anything that is cached was computed."""
        return sorted({tick for tick, call in self._placed() if call.cached and call.computed > 0})

    @property
    def compute_fraction(self) -> float:
        """Computed share of the work (calls weighted by samples and parameters); 1.0 before any run."""
        total = sum(call.weight for call in self.calls)
        return sum(call.weight * call.computed for call in self.calls) / total if total else 1.0

    @property
    def speedup(self) -> float:
        """1 / compute_fraction: what the denoising loop gains where the denoiser is all its cost."""
        return 1 / self.compute_fraction if self.compute_fraction else float("inf")

    @property
    def drift(self) -> float | None:
        """Estimated error of the reused outputs, as a fraction of the output, mean over all ticks; None where unknown.

        At each computed tick what would have been reused is compared with the truth. Between two computed ticks the error
        grows from nothing to that, so each reused tick counts half of it.
        """
        if not any(record.errors for record in self.records):
            return None
        return sum(map(_lost, self.records)) / self.num_ticks

    @property
    def cache_bytes(self) -> int:
        """Most bytes that the cache held at once, on the device that computes."""
        return max((record.cache_bytes for record in self.records), default=0)

    @property
    def host_bytes(self) -> int:
        """Most bytes that it held in host memory instead (`cache_device="cpu"`)."""
        return max((record.host_bytes for record in self.records), default=0)

    @property
    def reasons(self) -> dict[str, list[tuple[int, str, str]]]:
        """(tick, branch, site) of every call that a guard forced to compute, by reason."""
        found: dict[str, list[tuple[int, str, str]]] = {}
        for tick, call in self._placed():
            if call.reason is not None:
                found.setdefault(call.reason, []).append((tick, call.branch, call.site))
        return found

    @property
    def notes(self) -> list[str]:
        """What the user should know: that nothing was reused, and why; that steps could not be observed; what was done to
        keep to `max_cache_bytes`."""
        if not self.records:
            return ["no run yet"]
        if not self.calls:
            return [
                "no call of the denoiser was seen: it ran outside this target, or compiled into something larger"
            ]
        if not any(record.observed for record in self.records):
            return [f"nothing was reused: {NOT_OBSERVED}"]
        unused = all(call.computed == 1 for call in self.calls)
        done = dict.fromkeys(note for record in self.records for note in record.notes)
        return [*([f"nothing was reused: {self._why()}"] if unused else []), *done]

    def summary(self) -> str:
        """A few lines for a person."""
        if not self.calls:
            return f"{self.method}: {self.notes[0]}"
        ticks = len(self.computed_ticks)
        head = f"{self.method}: {ticks} of {self.num_ticks} ticks computed"
        work = f"{self.compute_fraction:.1%} of the work ({self.speedup:.2f}x less)"
        aside = f" and {self.host_bytes / 2**20:.2f} MiB in host memory" if self.host_bytes else ""
        lines = [f"{head}, {work}, at most {self.cache_bytes / 2**20:.2f} MiB cached{aside}"]
        for branch in self.branches:
            lines.append(f"  {branch:>8} {self._timeline(branch)}")
        for reason, places in self.reasons.items():
            lines.append(f"  computed by guard: {reason} ({len(places)} calls)")
        if self.drift is not None:
            lines.append(f"  estimated error of the output: {self.drift:.2%} (mean over ticks)")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def plot(self, path: str | Path) -> Path:
        """Draws the decision timeline (tick by branch and site) as PNG or SVG, by the path's ending.

        Raises:
            ImportError: matplotlib is not installed (`pip install diffcache[evals]`).
        """
        from diffcache.reports.timeline import draw_timeline

        return draw_timeline(self, Path(path))

    def save(self, path: str | Path) -> Path:
        """Writes everything as JSON; returns the path."""
        data: dict[str, Any] = {
            "method": self.method,
            "options": self.options,
            "compute_fraction": self.compute_fraction,
            "cache_bytes": self.cache_bytes,
            "host_bytes": self.host_bytes,
            "notes": self.notes,
            "runs": [asdict(record) for record in self.records],
        }
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=1) + "\n")
        return path

    def to_schedule(self) -> Schedule:
        """The run's decisions as a schedule that can be saved, shared and replayed.

        Raises:
            ScheduleError: there is not exactly one denoising loop, or it was decided sample by sample.
        """
        return freeze(self)

    def __repr__(self) -> str:
        return f"<RunReport {self.summary().splitlines()[0]}>"

    def _placed(self) -> list[tuple[int, CallRecord]]:
        placed, first = [], 0
        for record in self.records:
            placed += [(first + call.tick, call) for call in record.calls]
            first = 1 + max((tick for tick, _ in placed), default=-1)
        return placed

    def _table(self, holds: Any) -> Tensor:
        branches, sites = self.branches, self.sites
        table = torch.zeros(self.num_ticks, len(branches), len(sites), dtype=torch.bool)
        for tick, call in self._placed():
            if call.cached and holds(call):
                table[tick, branches.index(call.branch), sites.index(call.site)] = True
        return table

    def _timeline(self, branch: str) -> str:
        """One character per tick: the marks' common one, "+" where they differ, a dot where the branch was not called."""
        marks = ["."] * self.num_ticks
        for tick, call in self._placed():
            if call.cached and call.branch == branch:
                marks[tick] = call.mark if marks[tick] in (".", call.mark) else MIXED
        return "".join(marks)

    def _why(self) -> str:
        threshold = self.options.get("threshold")
        asked = (
            "the method asked for it"
            if threshold is None
            else f"threshold={threshold} allows no reuse here: raise it"
        )
        reasons = Counter(call.reason or asked for call in self.calls)
        if set(reasons) <= {WARM_UP, TAIL, NOTHING_STORED, NO_SIGNAL}:
            return (
                f"too few steps to skip any ({self.num_ticks} ticks: warm-up, history and tail take them all)"
            )
        return ", ".join(f"{reason} ({count} calls)" for reason, count in reasons.most_common())


def _lost(record: RunRecord) -> float:
    """Estimated errors of a run's reused ticks, summed; samples that are not treated alike count as predicted."""
    marks = {call.tick: call.mark for call in record.calls if call.cached and not call.computed}
    predicted = Decision.PREDICT.value
    return sum(
        errors.get(marks.get(tick, predicted), errors[predicted]) / 2
        for end, last, errors in record.errors
        for tick in range(last + 1, end)
    )
