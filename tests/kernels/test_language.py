"""The language side through the twins: what it calls it calls by the dispatch."""

import pytest
import torch
from language.tiny import texts, tiny_llama

from diffcache import accelerate, generate
from diffcache.kernels import attention_probe_triton, confidence_triton
from diffcache.kernels.dispatch import SWITCH


def test_elastic_cache_writes_the_same_with_the_kernels(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, prompts = accelerate(tiny_llama().to(device), "elastic-cache", window=3), texts(1, 6).to(device)
    ran: set[str] = set()
    for module, name in ((attention_probe_triton, "attention_received"), (confidence_triton, "likeliest")):
        twin = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, twin=twin, name=name: ran.add(name) or twin(*a))
    written = []
    for kernels in ("triton", "reference"):
        monkeypatch.setenv(SWITCH, kernels)
        written.append(generate(model, prompts, gen_length=4, eos_early_stop=False).sequences)
    assert ran == {"attention_received", "likeliest"}
    assert torch.equal(*written)
