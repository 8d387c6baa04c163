"""The zoo of pipelines: tiny complete Diffusers pipelines with random weights, built from configurations only."""

from __future__ import annotations

from zoo import image_pipelines, modular_pipelines, other_pipelines, unet_pipelines, video_pipelines
from zoo.noise_schedulers import with_noise_scheduler
from zoo.pipeline_case import PipelineCase

__all__ = ["CASES", "PipelineCase", "get", "with_noise_scheduler"]

FAMILIES = (image_pipelines, video_pipelines, unet_pipelines, modular_pipelines, other_pipelines)
CASES: dict[str, PipelineCase] = {case.name: case for family in FAMILIES for case in family.CASES}


def get(name: str) -> PipelineCase:
    """The pipeline case of that name."""
    return CASES[name]
