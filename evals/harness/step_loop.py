"""A Stable Diffusion 3 pipeline taken apart into steps, as servers call it: many samples at different steps in one batch.

The four operations are those that a pipeline of vLLM-Omni has for step execution: prepare, denoise, step, decode.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

GUIDANCE_SCALE = 4.5
"""Weight of the difference between the two passes."""
PROMPT_LENGTH = 8
"""In tokens."""


@dataclass(eq=False)
class Sample:
    """One picture on its way.

    Attributes:
        latents: [1, C, H, W].
        embeds: of the unconditional and the conditional pass, [2, tokens, channels].
        pooled: likewise, [2, channels].
        noise_scheduler: its own.
        step: the next one.
    """

    latents: Tensor
    embeds: Tensor
    pooled: Tensor
    noise_scheduler: Any
    step: int = 0

    @property
    def num_steps(self) -> int:
        return len(self.noise_scheduler.timesteps)

    @property
    def done(self) -> bool:
        return self.step == self.num_steps


class StepLoop:
    """The loop of a pipeline, step by step.

    Args:
        pipe: a `StableDiffusion3Pipeline`.
    """

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe

    @torch.no_grad()
    def prepare(self, prompt: str, seed: int, num_steps: int) -> Sample:
        """A sample before its first step."""
        pipe, config = self.pipe, self.pipe.transformer.config
        cond, uncond, pooled, uncond_pooled = pipe.encode_prompt(
            prompt=prompt, prompt_2=None, prompt_3=None, max_sequence_length=PROMPT_LENGTH
        )
        shape = (1, config.in_channels, config.sample_size, config.sample_size)
        noise_scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config)
        noise_scheduler.set_timesteps(num_steps)
        latents = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=cond.dtype)
        return Sample(
            latents.to(cond.device),
            torch.cat([uncond, cond]),
            torch.cat([uncond_pooled, pooled]),
            noise_scheduler,
        )

    @torch.no_grad()
    def denoise(self, samples: Sequence[Sample]) -> list[Tensor]:
        """What each sample's next step goes by, from one call: the unconditional rows of all, then the conditional ones."""
        times = torch.stack([sample.noise_scheduler.timesteps[sample.step] for sample in samples])
        latents = torch.cat([sample.latents for sample in samples])
        output = self.pipe.transformer(
            hidden_states=torch.cat([latents, latents]),
            timestep=torch.cat([times, times]).to(latents),
            encoder_hidden_states=torch.cat([s.embeds[i : i + 1] for i in (0, 1) for s in samples]),
            pooled_projections=torch.cat([s.pooled[i : i + 1] for i in (0, 1) for s in samples]),
            return_dict=False,
        )[0]
        uncond, cond = output.chunk(2)
        return list((uncond + GUIDANCE_SCALE * (cond - uncond)).split(1))

    @torch.no_grad()
    def advance(self, sample: Sample, output: Tensor) -> None:
        """One step of a sample."""
        time = sample.noise_scheduler.timesteps[sample.step]
        sample.latents = sample.noise_scheduler.step(output, time, sample.latents, return_dict=False)[0]
        sample.step += 1

    @torch.no_grad()
    def decode(self, sample: Sample) -> Tensor:
        """The picture, [3, H, W] in 0..1."""
        vae = self.pipe.vae
        latents = sample.latents / vae.config.scaling_factor + vae.config.shift_factor
        picture: Tensor = vae.decode(latents, return_dict=False)[0][0]
        return (picture / 2 + 0.5).clamp(0, 1)
