"""LanguageReport: what a run of a language model computed, read, and held."""

import json
from pathlib import Path
from typing import Any

from diffcache.language.ledger import Ledger


class LanguageReport:
    """The last run of an accelerated language model; empty before the first. Sibling of `RunReport`.

    Attributes:
        method, options: what was attached.
        ledger: everything that was counted; None before any run.
    """

    def __init__(self, method: str, options: dict[str, Any], ledger: Ledger | None) -> None:
        self.method = method
        self.options = options
        self.ledger = ledger

    @property
    def calls(self) -> int:
        """Model calls."""
        return self.ledger.calls if self.ledger else 0

    @property
    def compute_fraction(self) -> float:
        """Operations, the method's own included, as a share of what the same calls cost without a cache; 1 before any run."""
        if self.ledger is None or not self.ledger.full_flops:
            return 1.0
        return self.ledger.flops / self.ledger.full_flops

    @property
    def speedup(self) -> float:
        """1 / compute_fraction: what the same calls gain where operations are all their cost."""
        return 1 / self.compute_fraction

    @property
    def cache_bytes(self) -> int:
        """Bytes that the cache held."""
        return self.ledger.cache_bytes if self.ledger else 0

    @property
    def notes(self) -> list[str]:
        """What the user should know."""
        if self.ledger is None:
            return ["no run yet"]
        return ["nothing was reused"] if self.ledger.full_calls == self.ledger.calls else []

    def summary(self) -> str:
        """A few lines for a person."""
        ledger = self.ledger
        if ledger is None:
            return f"{self.method}: {self.notes[0]}"
        work = f"{self.compute_fraction:.1%} of the operations ({self.speedup:.2f}x less)"
        lines = [
            f"{self.method}: {self.calls} calls, {ledger.full_calls} of them in full, {work}",
            f"  {ledger.row_layers:,} of {ledger.full_row_layers:,} rows x layers computed",
            f"  {ledger.probe_flops / max(ledger.flops, 1):.1%} of the operations spent on deciding",
            f"  {self.cache_bytes / 2**20:.2f} MiB cached, {ledger.kv_bytes_read / 2**20:.1f} MiB of it read in all",
        ]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def save(self, path: str | Path) -> Path:
        """Writes everything as JSON; returns the path."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        counted = self.ledger.as_dict() if self.ledger else {}
        data = {"method": self.method, "options": self.options, "notes": self.notes, **counted}
        path.write_text(json.dumps(data, indent=1) + "\n")
        return path

    def __repr__(self) -> str:
        return f"<LanguageReport {self.summary().splitlines()[0]}>"
