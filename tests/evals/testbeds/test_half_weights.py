"""Weights in half the bytes: what is loaded is what was saved, to float16."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from diffcache.evals.testbeds.half_weights import save_weights, with_weights


def test_weights_come_back_as_they_were_to_float16(tmp_path: Path) -> None:
    net, file = nn.Linear(64, 64), tmp_path / "new" / "net.safetensors"
    save_weights(net, file)
    assert file.stat().st_size < 2 * sum(weight.numel() for weight in net.parameters()) + 1000
    found = with_weights(nn.Linear(64, 64), file)
    assert found.weight.dtype == torch.float32
    assert torch.equal(found.weight, net.weight.half().float())
    assert not found.training
    assert not any(weight.requires_grad for weight in found.parameters())
