"""What is evaluated: a pipeline, its prompts, and how to call it."""

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import DiffusionPipeline

from diffcache.config import CacheConfig
from diffcache.evals.harness.rendering import Rendered, render
from diffcache.evals.metrics.errors import EvaluationError
from diffcache.evals.testbeds import zoo


class Subject:
    """A pipeline.

    Args:
        model: a testbed, a folder or a hub id.
        steps: of every call.
        device: where it runs; bfloat16 there unless it is the CPU.

    Raises:
        EvaluationError: there is no such pipeline.
    """

    def __init__(self, model: str, steps: int, device: torch.device) -> None:
        self.model, self.steps = model, steps
        self.pipe = _load(model, device)
        self.pipe.to(device)

    def render(
        self, prompts: Sequence[Any], seeds: Sequence[int], config: CacheConfig | None = None
    ) -> Rendered:
        """One call of the pipeline: a sample for each prompt, from its own seed."""
        return render(self.pipe, self._call(list(prompts), seeds), config)

    def _call(self, prompts: list[Any], seeds: Sequence[int]) -> dict[str, Any]:
        if self.model in zoo.NAMES:
            return zoo.call_for(self.model, prompts, seeds, self.steps)
        return {
            "prompt": prompts,
            "num_inference_steps": self.steps,
            "generator": [torch.Generator().manual_seed(seed) for seed in seeds],
        }


def _load(model: str, device: torch.device) -> Any:
    try:
        if model in zoo.NAMES:
            return zoo.load(model)
        pipe = DiffusionPipeline.from_pretrained(
            model, torch_dtype=None if device.type == "cpu" else torch.bfloat16
        )
    except (OSError, ValueError) as error:
        raise EvaluationError(
            f"no pipeline {model!r} ({str(error).splitlines()[0]}): name a testbed ({', '.join(zoo.NAMES)}), "
            "a folder or a hub id."
        ) from error
    pipe.set_progress_bar_config(disable=True)
    return pipe
