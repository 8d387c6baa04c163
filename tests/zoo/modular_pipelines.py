"""Tiny modular pipelines of Diffusers: blocks that are composed, and a loop that is itself a block."""

from __future__ import annotations

from typing import Any

from diffusers.modular_pipelines.flux.modular_blocks_flux import FluxCoreDenoiseStep
from diffusers.modular_pipelines.wan.modular_blocks_wan import WanCoreDenoiseStep
from zoo.image_pipelines import POOLED, PROMPT, PROMPTS
from zoo.pipeline_case import PipelineCase, calling, flow, model, quiet
from zoo.video_pipelines import unipc


def assemble(blocks: Any, **components: Any) -> Any:
    pipe = blocks.init_pipeline()
    pipe.update_components(**components)
    return quiet(pipe)


def flux() -> Any:
    return assemble(FluxCoreDenoiseStep(), transformer=model("FluxTransformer2DModel"), scheduler=flow())


def wan() -> Any:
    return assemble(WanCoreDenoiseStep(), transformer=model("WanTransformer3DModel"), scheduler=unipc())


SMALL = {"height": 16, "width": 16, "output": "latents"}
CASES = [
    PipelineCase(
        "FluxModularPipeline",
        flux,
        calling(**PROMPT, **POOLED, **SMALL),
        "none",
        notes="no cache_context and no num_timesteps",
    ),
    PipelineCase(
        "WanModularPipeline",
        wan,
        calling(**PROMPTS, **SMALL, num_frames=5),
        "two-pass",
        notes="a guider calls once per branch, without cache_context; no num_timesteps",
    ),
]
