"""How often a run waits for the device, and how many operations a call starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from language.tiny import EOS, texts, tiny_llama

from diffcache import accelerate, generate, stream
from diffcache.evals.language.host import Operations

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


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Operations]:
    counted, tolist = Operations(), torch.Tensor.tolist

    def noted(tensor: torch.Tensor) -> Any:  # on a CPU no operation shows it
        counted.seen["tolist"] += 1
        return tolist(tensor)

    with monkeypatch.context() as patch, counted:
        patch.setattr(torch.Tensor, "tolist", noted)
        yield counted


def reads_in(counted: Operations) -> int:
    return sum(counted.seen[name] for name in READS)


def reads_of_calls(model: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[int]:
    """Reads of each call but the first, which also sets the run up."""
    found = []
    with counting(monkeypatch) as counted:
        before = 0
        for step in stream(model, texts(2, 9), gen_length=24, **options):
            if step.call > 1:
                found.append(reads_in(counted) - before)
            before = reads_in(counted)
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


@pytest.mark.parametrize("way", WAYS)
def test_dllm_cache_reads_the_device_once_at_most(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = accelerate(tiny_llama(), "dllm-cache", prompt_interval=3, interval=2)
    assert max(reads_of_calls(model, monkeypatch, **WAYS[way])) <= 1


@pytest.mark.parametrize("threshold", [1.01, 0.9, -1.01])
@pytest.mark.parametrize(("refresh", "most"), [("delayed", 1), ("immediate", 2)])
def test_elastic_reads_the_drift_of_all_layers_at_once(
    refresh: str, most: int, threshold: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = accelerate(tiny_llama(), "elastic-cache", window=5, refresh=refresh, threshold=threshold)
    assert max(reads_of_calls(model, monkeypatch, **WAYS["window"])) <= most


def test_greedy_reads_the_device_once_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    model = accelerate(tiny_llama(), "dkv-greedy")
    assert max(reads_of_calls(model, monkeypatch, block_length=8, steps=12, remasking="random", seed=0)) <= 1


def test_a_quota_without_eos_never_waits_inside_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    model = accelerate(tiny_llama(), "fast-dllm-dual")
    reads = reads_of_calls(model, monkeypatch, block_length=8, eos_early_stop=False)
    assert sum(reads) <= 3
    assert sum(reads_of_calls(model, monkeypatch, block_length=8, eos_token_id=EOS)) > 3


class Recorded:
    """A backend of torch.compile whose graphs are replayed: a replay is one operation, whatever is in the graph."""

    def __init__(self) -> None:
        self.graphs = self.replays = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        self.graphs += 1

        def replay(*given: Any) -> Any:
            self.replays += 1
            with torch.utils._python_dispatch._disable_current_modes():
                return graph.forward(*given)

        return replay


def operations(model: Any, backend: Recorded, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[int]:
    """Operations that the host starts in each call: replays of graphs, and what is outside of them."""
    found, before = [], 0
    with counting(monkeypatch) as counted:
        for _ in stream(model, texts(1, 9), gen_length=64, eos_early_stop=False, **options):
            now = counted.seen.total() + backend.replays
            found.append(now - before)
            before = now
    return found


@pytest.mark.slow
@pytest.mark.parametrize("method", ["default", "fast-dllm-dual", "none"])
def test_a_compiled_model_has_few_graphs_and_costs_the_host_one_replay_a_call(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compiler.reset()
    model, backend = tiny_llama(num_hidden_layers=1), Recorded()
    accelerate(model, None if method == "default" else method)
    options = {"gen_length": 64, "eos_early_stop": False}
    expected = generate(model, texts(1, 9), **options)
    compiled = torch.compile(model, backend=backend, dynamic=False)
    assert torch.equal(generate(compiled, texts(1, 9), **options).sequences, expected.sequences)
    # the first call, which makes the cache; all rows; and each size of some rows
    assert backend.graphs <= {"none": 2, "fast-dllm-dual": 3, "default": 6}[method]
    assert backend.replays == expected.calls
    graphs = backend.graphs
    found = operations(compiled, backend, monkeypatch)
    assert backend.graphs == graphs
    assert max(found) < 1530 / 3
