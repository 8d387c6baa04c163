"""How often a run waits for the device, and how many operations a call starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from language.tiny import EOS, texts, tiny_llama
from torch.utils._python_dispatch import TorchDispatchMode

from diffcache import accelerate, stream

READS = {
    "item",
    "_local_scalar_dense",
    "is_nonzero",
    "nonzero",
    "equal",
    "masked_select",
    "allclose",
    "tolist",
}
"""What waits for the device."""


class Counting(TorchDispatchMode):
    """Counts operations by name, those of diffcache's own kernels as one each."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[function.name().removeprefix("aten::").partition(".")[0]] += 1
        return function(*args, **(kwargs or {}))

    @property
    def reads(self) -> int:
        return sum(self.seen[name] for name in READS)


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    counted, tolist = Counting(), torch.Tensor.tolist

    def noted(tensor: torch.Tensor) -> Any:  # on a CPU no operation shows it
        counted.seen["tolist"] += 1
        return tolist(tensor)

    with monkeypatch.context() as patch, counted:
        patch.setattr(torch.Tensor, "tolist", noted)
        yield counted


def reads_of_calls(model: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[int]:
    """Reads of each call but the first, which also sets the run up."""
    found = []
    with counting(monkeypatch) as counted:
        before = 0
        for step in stream(model, texts(2, 9), gen_length=24, **options):
            if step.call > 1:
                found.append(counted.reads - before)
            before = counted.reads
    assert len(found) >= 5
    return found


METHODS = [
    None,
    "none",
    "default",
    "dkv-decode",
    "dkv-prefill",
    "fast-dllm-dual",
    "fast-dllm-prefix",
    "vicinity",
    "block-causal",
]
WAYS: dict[str, dict[str, Any]] = {
    "quota": {"block_length": 8},
    "threshold": {"block_length": 8, "threshold": 0.3},
    "window": {"window": 5, "threshold": 0.3},
    "edits": {"block_length": 8, "threshold": 0.3, "editing_threshold": 0.2, "max_post_steps": 2},
    "sampled": {"block_length": 8, "temperature": 1.0, "seed": 0},
    "entropy": {"block_length": 8, "remasking": "entropy", "alg_temp": 0.1, "seed": 0},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", METHODS)
def test_a_call_reads_the_device_once_at_most(
    method: str | None, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_llama()
    if method is not None:
        accelerate(model, None if method == "default" else method)
    assert max(reads_of_calls(model, monkeypatch, **WAYS[way])) <= 1


def test_greedy_reads_the_device_once_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    model = accelerate(tiny_llama(), "dkv-greedy")
    assert max(reads_of_calls(model, monkeypatch, block_length=8, steps=12, remasking="random", seed=0)) <= 1


def test_a_quota_without_eos_never_waits_inside_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    model = accelerate(tiny_llama(), "fast-dllm-dual")
    reads = reads_of_calls(model, monkeypatch, block_length=8, eos_early_stop=False)
    assert sum(reads) <= 3
    assert sum(reads_of_calls(model, monkeypatch, block_length=8, eos_token_id=EOS)) > 3
