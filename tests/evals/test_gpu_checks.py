"""Each sub-command of scripts/gpu_checks.sh runs on a CPU with tiny models, so that no GPU's time goes into what dies at once."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gpu_checks.sh"
WRITES = {
    "real-size": ["real_size/flux.json", "real_size/flux_compiled.json", "real_size.html"],
    "tests": ["tests_gpu.xml"],
    "kernels": ["kernels/gpu.json"],
    "models": ["real_size/sdxl.json", "real_size.html"],
    "quantisation": ["quantization_speed/compiled.json"],
    "language": ["language_speed/gpu.json"],
    "testbeds": ["trajectory/dit.json", "threshold/dit.json"],
    "offload": ["real_size/flux_offload.json", "real_size.html"],
}


@pytest.mark.slow
@pytest.mark.parametrize("what", WRITES)
def test_a_sub_command_runs_through_and_leaves_its_rows(what: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(SCRIPT), what, str(tmp_path), "--dry-run"],
        cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for name in WRITES[what]:
        assert (tmp_path / name).stat().st_size > 0
        if name.endswith(".json"):
            found = json.loads((tmp_path / name).read_text())
            assert found["header"]["command"]
            assert found.get("rows") or found.get("tokens_per_second")
            if name.startswith("real_size/"):
                assert all(row["computed"] for row in found["rows"].values())


def test_an_unknown_sub_command_shows_what_there_is(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(SCRIPT), "everything"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert all(f"gpu_checks.sh {what} " in done.stdout for what in WRITES)
