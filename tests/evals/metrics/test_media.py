"""Samples as files."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from diffcache.evals.errors import EvaluationError
from diffcache.evals.metrics.media import load_sample, save_sample


@pytest.mark.parametrize("sample", [torch.rand(3, 5, 7), torch.rand(4, 3, 5, 7)], ids=["picture", "video"])
def test_samples_are_kept_to_eight_bits(sample: Tensor, tmp_path: Path) -> None:
    path = save_sample(sample, tmp_path / "000000")
    assert load_sample(path).shape == sample.shape
    assert (load_sample(path) - sample).abs().max() <= 0.5 / 255 + 1e-6
    assert [file.name for file in tmp_path.iterdir()] == [path.name]  # nothing half-written is left
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(EvaluationError, match="delete it and run again"):
        load_sample(path)
