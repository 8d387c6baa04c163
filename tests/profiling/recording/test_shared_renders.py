"""A search that several processes share finds what one process finds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from diffcache.profiling.recording.processes import broadcast, mean, share_of_calls, shared

SCRIPT = Path(__file__).with_name("shared_search.py")
LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
"""On a CPU `accelerate launch` starts one process, whatever number it is given."""


def found(folder: Path, *launch: str) -> dict[str, Tensor]:
    folder.mkdir()
    paths = [str(SCRIPT.parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([sys.executable, *launch, str(SCRIPT), str(folder)], env=environment, check=True)
    return load_file(folder / "found.safetensors")


@pytest.mark.slow
def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    one, two = found(tmp_path / "one"), found(tmp_path / "two", *LAUNCH)
    assert (int(one["processes"]), int(two["processes"])) == (1, 2)
    assert torch.equal(one["tables"], two["tables"])
    assert torch.equal(one["scores"], two["scores"])
    torch.testing.assert_close(one["logits"], two["logits"], rtol=1e-4, atol=1e-5)
    assert len((tmp_path / "two/evolved/log.jsonl").read_text().splitlines()) == 3
    assert len((tmp_path / "two/routed/router.jsonl").read_text().splitlines()) == 3


def test_in_one_process_nothing_is_divided() -> None:
    scores = torch.rand(3, 2, dtype=torch.float64)
    assert shared(3, lambda i: 2 * i) == [0, 2, 4]
    assert torch.equal(mean(scores), scores)
    assert share_of_calls([1, 2, 3]) == [1, 2, 3]
    assert broadcast("kept") == "kept"
