"""Features of Diffusers and PEFT that tests put on a pipeline: offloading, casting, memory formats, LoRA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig

CPU = torch.device("cpu")


def denoiser(pipe: Any) -> Any:
    return pipe.components.get("transformer") or pipe.components["unet"]


def model_offload(pipe: Any) -> None:
    pipe.enable_model_cpu_offload(device="cpu")


def group_offload(pipe: Any) -> None:
    denoiser(pipe).enable_group_offload(CPU, CPU, offload_type="block_level", num_blocks_per_group=1)


def leaf_offload(pipe: Any) -> None:
    pipe.enable_group_offload(CPU, CPU, offload_type="leaf_level")


def layerwise_casting(pipe: Any) -> None:
    denoiser(pipe).enable_layerwise_casting(torch.float8_e4m3fn, torch.float32)


def bfloat16(pipe: Any) -> None:
    pipe.to(torch.bfloat16)


def channels_last(pipe: Any) -> None:
    for module in denoiser(pipe).modules():
        if isinstance(module, torch.nn.Conv2d):
            module.to(memory_format=torch.channels_last)


def attention_slicing(pipe: Any) -> None:
    pipe.enable_attention_slicing(1)


def lora(pipe: Any, name: str = "one", scale: float = 1.0) -> None:
    """An adapter that matters, with weights that depend on its name only."""
    config = LoraConfig(r=2, lora_alpha=2, init_lora_weights=False, target_modules=["to_q", "to_k", "to_v"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(name))
        denoiser(pipe).add_adapter(config, adapter_name=name)
    denoiser(pipe).set_adapters(name, scale)


def at_step(step_of_change: int, change: Callable[[Any], None]) -> Callable[..., Any]:
    def callback(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if step == step_of_change:
            change(pipe)
        return kwargs

    return callback
