"""Pipelines by name: a testbed, a folder or a hub id; and how to call them."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from diffusers import DiffusionPipeline

from diffcache.evals.errors import EvaluationError
from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.calling import Call


def load_pipeline(model: str, device: torch.device | None = None) -> Any:
    """A pipeline without progress bars; in bfloat16 unless it is a testbed or runs on the CPU.

    Args:
        model: a testbed, a folder or a hub id.
        device: where it runs; None: a testbed on the CPU, others on the GPU where there is one.

    Raises:
        EvaluationError: there is no such pipeline.
    """
    try:
        if model in zoo.ALL:
            return zoo.load(model).to(device or "cpu")
        device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dtype = None if device.type == "cpu" else torch.bfloat16
        pipe = DiffusionPipeline.from_pretrained(model, torch_dtype=dtype).to(device)
    except (OSError, ValueError) as error:
        raise EvaluationError(
            f"no pipeline {model!r} ({str(error).splitlines()[0]}): name a testbed ({', '.join(zoo.ALL)}), "
            "a folder or a hub id."
        ) from error
    pipe.set_progress_bar_config(disable=True)
    return pipe


def call_for(model: str, prompts: Sequence[Any], seeds: Iterable[int], steps: int) -> Call:
    """Keyword arguments that render a sample for each prompt (class labels for testbeds in `zoo.CLASSES`), each from its own seed.

    Raises:
        EvaluationError: a prompt of a testbed in `zoo.CLASSES` is no class label.
    """
    if model in zoo.ALL:
        return zoo.call_for(model, list(prompts), seeds, steps)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    common = {"num_inference_steps": steps, "generator": generators, "output_type": "pt"}
    return {"prompt": list(prompts), **common}
