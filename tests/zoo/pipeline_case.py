"""What a tiny pipeline of the zoo is, and the small components that many of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLHunyuanVideo,
    AutoencoderKLWan,
    DDIMScheduler,
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
)
from torch import Tensor, nn
from zoo import denoisers
from zoo.denoiser_case import like
from zoo.weights import tiny

Guidance = Literal["two-pass", "batched", "none"]
CLIP = {"height": 16, "width": 16, "num_frames": 5, "output_type": "latent"}
"""The size of a clip, and no decoding."""


def first(output: Any) -> Tensor:
    """The picture of a pipeline's output: its first field, as one tensor."""
    value = output if isinstance(output, Tensor) else output[0]
    return torch.as_tensor(value)


@dataclass(frozen=True)
class PipelineCase:
    """A tiny complete pipeline.

    Fields:
        name: the class, with a suffix where a class has several cases.
        build: makes a fresh one.
        call: (seed, steps, **overrides) -> the keyword arguments of one render.
        guidance: "two-pass" (one call per branch), "batched" (one call with a doubled batch) or "none".
        denoisers: the components that are denoisers.
        image: the pipeline's output -> the tensor to compare.
        notes: what the loop does that others do not.
    """

    name: str
    build: Callable[[], DiffusionPipeline]
    call: Callable[..., dict[str, Any]]
    guidance: Guidance
    denoisers: tuple[str, ...] = ("transformer",)
    image: Callable[[Any], Tensor] = first
    notes: str = ""

    def render(self, pipe: Any, seed: int = 0, steps: int = 4, **overrides: Any) -> Tensor:
        """The picture of one run of `pipe`, which `build` made."""
        return self.image(pipe(**self.call(seed, steps, **overrides)))

    def on(self, device: str) -> PipelineCase:
        """The same with the pipeline, and the tensors that it is called with, on a device."""
        return replace(
            self,
            build=lambda: self.build().to(device),
            call=lambda *args, **kwargs: like(self.call(*args, **kwargs), lambda x: x.to(device)),
        )


def quiet(pipe: Any) -> Any:
    """The pipeline without progress bar and without gradients."""
    pipe.set_progress_bar_config(disable=True)
    for component in pipe.components.values():
        if isinstance(component, nn.Module):
            component.eval().requires_grad_(False)
    return pipe


def noise(*shape: int, seed: int) -> Tensor:
    """A constant of a call (text embedding, picture): depends on its shape and seed, not on the render's seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def picture(*shape: int, seed: int = 3) -> Tensor:
    """A picture or clip with values between 0 and 1."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def calling(**fixed: Any) -> Callable[..., dict[str, Any]]:
    """A `call`: the fixed arguments, the generator and the number of steps, and what the caller overrides."""

    def call(seed: int, steps: int, **overrides: Any) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        return {**fixed, "generator": generator, "num_inference_steps": steps, **overrides}

    return call


def model(name: str, *, seed: int = 0, **config: Any) -> Any:
    """The zoo's denoiser of that name, with entries of its configuration replaced."""
    return denoisers.get(name).build(seed=seed, **config)


def absent(*names: str) -> dict[str, None]:
    """Components that a call with ready embeddings does without."""
    return dict.fromkeys(names)


def kl_vae(latent_channels: int = 4, blocks: int = 2, **config: Any) -> AutoencoderKL:
    """An image autoencoder that shrinks by 2 per block after the first."""
    return tiny(
        AutoencoderKL,
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        block_out_channels=(8,) * blocks,
        norm_num_groups=4,
        latent_channels=latent_channels,
        **config,
    )


def wan_vae(cls: type = AutoencoderKLWan, **config: Any) -> Any:
    """A video autoencoder of the Wan family: 8 x 8 pixels and 4 frames to one latent of 16 channels."""
    return tiny(cls, base_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, **config)


def hunyuan_vae() -> AutoencoderKLHunyuanVideo:
    """A video autoencoder: 8 x 8 pixels and 4 frames to one latent of 4 channels."""
    return tiny(
        AutoencoderKLHunyuanVideo,
        latent_channels=4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        norm_num_groups=4,
        mid_block_add_attention=False,
    )


def ddim(**config: Any) -> DDIMScheduler:
    """The noise scheduler of the Stable Diffusion family."""
    defaults: dict[str, Any] = {
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "clip_sample": False,
        "set_alpha_to_one": False,
        "steps_offset": 1,
    }
    return DDIMScheduler(**{**defaults, **config})


def flow(**config: Any) -> FlowMatchEulerDiscreteScheduler:
    """The noise scheduler of the flow-matching families."""
    return FlowMatchEulerDiscreteScheduler(**config)
