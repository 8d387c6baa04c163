"""The causal testbed: the wan testbed's parts with a denoiser that makes video frame by frame."""

from __future__ import annotations

from typing import Any

from diffusers import FlowMatchEulerDiscreteScheduler, WanTransformer3DModel

from diffcache.evals.testbeds import zoo
from diffcache.rollouts.pipeline import CausalWanPipeline

FOLDER = zoo.FOLDER / "causal_wan"
TRAINED_FRAMES = 9
"""Latent frames that it was trained on; the first is one picture, each further one is two."""
SHIFT = 2.0


def load() -> Any:
    """Its pipeline, without progress bars."""
    transformer = WanTransformer3DModel.from_pretrained(FOLDER / "transformer").eval()
    parts = zoo.load("wan").components | {
        "transformer": transformer.requires_grad_(False),
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=SHIFT),
    }
    return CausalWanPipeline(**parts)


def call(steps: int = 8, guidance_scale: float = 2.0) -> dict[str, Any]:
    """Arguments beside prompts, frames, generator and policy: one latent frame at a time."""
    return {
        "height": 32,
        "width": 32,
        "chunk_frames": 1,
        "timesteps": None,
        "num_inference_steps": steps,
        "guidance_scale": guidance_scale,
        "max_sequence_length": 20,
        "output_type": "pt",
    }
