"""The benchmark that waits for a GPU runs, at a tiny size, on a CPU."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "benchmark" / "quantization.py"


def test_the_benchmark_writes_a_row_for_each_kind_of_weights_and_says_what_this_machine_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rows.json"
    size = ["--heads=1", "--blocks=1", "--tokens=16", "--ticks=4", "--rounds=1"]
    monkeypatch.setattr(
        sys, "argv", [str(SCRIPT), *size, "--weights", "plain", "int8", "float8", "--json", str(out)]
    )
    runpy.run_path(str(SCRIPT), run_name="__main__")
    found = json.loads(out.read_text())
    rows = {(row["weights"], row.get("interval")): row for row in found["rows"]}
    assert {("plain", 1), ("plain", 2), ("int8", 1), ("int8", 2)} <= set(rows)
    assert rows["int8", 1]["model_bytes"] < rows["plain", 1]["model_bytes"]
    assert all(row["seconds"] > 0 for row in rows.values() if "seconds" in row)
    assert found["header"]["versions"]["torchao"]
