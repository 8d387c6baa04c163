"""Text generation runs its ops as Triton kernels where the switch says so, and writes the same text."""

from collections.abc import Callable
from importlib import import_module

import pytest
import torch
from language.tiny import texts, tiny_llama

from diffcache import accelerate, generate
from diffcache.kernels.dispatch import SWITCH
from diffcache.language.backbones.families import backbone_of
from diffcache.language.backbones.rotation import kernel_tables

TWINS = {
    "attention_drift": "attention_drift",
    "attention_received": "attention_probe",
    "likeliest": "likeliest",
    "replace_and_compare": "row_drift",
    "rope_scatter": "rope_scatter",
}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the twins that have run."""
    names: set[str] = set()

    def noted(name: str, twin: Callable[..., object]) -> Callable[..., object]:
        return lambda *args: names.add(name) or twin(*args)

    pytest.importorskip("triton")
    for name, file in TWINS.items():
        module = import_module(f"diffcache.kernels.{file}_triton")
        monkeypatch.setattr(module, name, noted(name, getattr(module, name)))
    return names


@pytest.mark.parametrize(
    ("method", "options", "called"),
    [
        ("elastic-cache", {"window": 3}, {"attention_received", "attention_drift"}),
        ("dllm-cache", {}, {"replace_and_compare"}),
    ],
    ids=["elastic-cache", "dllm-cache"],
)
def test_a_method_writes_the_same_with_the_kernels(
    method: str,
    options: dict[str, int],
    called: set[str],
    ran: set[str],
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, prompts = (
        accelerate(tiny_llama(num_hidden_layers=2).to(device), method, **options),
        texts(1, 4).to(device),
    )
    written = []
    for kernels in ("triton", "reference"):
        monkeypatch.setenv(SWITCH, kernels)
        written.append(generate(model, prompts, gen_length=3, eos_early_stop=False).sequences)
    assert ran == {"rope_scatter", "likeliest"} | called
    assert torch.equal(*written)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_kernel_rotates_where_it_has_the_models_own_bits(
    dtype: torch.dtype, device: torch.device, triton: None
) -> None:
    pytest.importorskip("triton")
    net = backbone_of(tiny_llama().to(device, dtype)).parts()
    rounds = device.type == "cuda" or dtype != torch.bfloat16  # the interpreter truncates to bf16
    assert (kernel_tables(net, net.rotary(5, device)) is not None) == rounds
