"""A pipeline for causal video models of Wan's form: text to video of any length, chunk after chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import WanPipeline
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor

from diffcache.attach.attach import denoising_run
from diffcache.rollouts.checkpoints import load_causal_weights
from diffcache.rollouts.policies import RolloutPolicy
from diffcache.rollouts.prompts import check_text, text_at, texts_by_frame
from diffcache.rollouts.rollout import rollout
from diffcache.rollouts.video import Rollout
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.numbers_given import is_count

OUTPUTS = ("np", "pt", "pil", "latent")
"""In which a video may be returned."""


@dataclass(frozen=True)
class VideoOutput:
    """What the pipeline returns.

    Attributes:
        frames: as `output_type` says: "pt" [batch, frames, 3, height, width] in 0..1, "np", "pil", or "latent".
    """

    frames: Any


@dataclass(frozen=True)
class Loop:
    """What each chunk's denoising loop is made with.

    Attributes:
        timesteps: of the noise scheduler; None for `steps` of its own.
        steps: of a chunk.
        guidance_scale: 1 for none.
        generator: of the noise.
        size: height and width of the latents.
    """

    timesteps: Sequence[float] | None
    steps: int
    guidance_scale: float
    generator: Any
    size: tuple[int, int]

    @property
    def guides(self) -> bool:
        return self.guidance_scale > 1


class CausalWanPipeline(WanPipeline):  # type: ignore[misc]
    """Wan's components with a causally trained transformer, and a rollout for each call.

        pipe = CausalWanPipeline.from_pretrained("Wan-AI/Wan2.1-T2V-1.3B-Diffusers")
        pipe.load_causal_weights("self_forcing_dmd.pt")
        frames = pipe("a cat", num_frames=477, policy="deep-sink").frames

    The noise scheduler decides how a chunk is denoised. Distilled students (Self-Forcing) draw new noise after each of their four
    steps: `FlowMatchEulerDiscreteScheduler(shift=5.0, stochastic_sampling=True)` with the default timesteps. What `accelerate`
    attached to `pipe.transformer` works: each chunk is a run of its own.
    """

    def load_causal_weights(self, path: Path | str) -> None:
        """Loads a checkpoint of Self-Forcing's form into the transformer.

        Raises:
            ScheduleError: it cannot be read, or belongs to another transformer, which is then left as it was.
        """
        load_causal_weights(self.transformer, path)

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | list[str] | Mapping[int, str | list[str]],
        negative_prompt: str | list[str] | None = None,
        *,
        height: int = 480,
        width: int = 832,
        num_frames: int = 81,
        policy: RolloutPolicy | str = "deep-sink",
        output_type: str = "np",
        **options: Any,
    ) -> VideoOutput:
        """Makes a video.

        Args:
            prompt: one text, or one for each video; or texts by the pixel frame from which they hold, {0: "...", 81: "..."}.
            negative_prompt: for guidance.
            height, width: in pixels, multiples of what a token is of.
            num_frames: pixel frames. The last chunk may make some more, which are cut off.
            policy: what each chunk sees of the past, see `diffcache.rollout`.
            output_type: "np", "pt", "pil" or "latent".
            **options: of `stream`, and of the policy.

        Keys and values are freed before the video is decoded.

        Raises:
            ConfigError: no text holds at frame 0, one would never hold, or an option is wrong.
        """
        _check_whole(num_frames=num_frames)
        if output_type not in OUTPUTS:
            raise ConfigError(f"output_type={output_type!r}: choose one of {', '.join(OUTPUTS)}.")
        frames = -(-(num_frames - 1) // self.vae_scale_factor_temporal) + 1
        given = {"height": height, "width": width, "policy": policy, **options}
        latents = torch.cat(list(self.stream(prompt, negative_prompt, latent_frames=frames, **given)), 2)
        if output_type == "latent":
            return VideoOutput(latents)
        video = self.vae.decode(self._denormalised(latents), return_dict=False)[0][:, :, :num_frames]
        return VideoOutput(self.video_processor.postprocess_video(video, output_type=output_type))

    @torch.no_grad()
    def stream(
        self,
        prompt: str | list[str] | Mapping[int, str | list[str]],
        negative_prompt: str | list[str] | None = None,
        *,
        latent_frames: int | None = None,
        height: int = 480,
        width: int = 832,
        policy: RolloutPolicy | str = "deep-sink",
        chunk_frames: int = 3,
        timesteps: Sequence[float] | None = (1000.0, 750.0, 500.0, 250.0),
        num_inference_steps: int = 4,
        guidance_scale: float = 1.0,
        generator: Any = None,
        max_sequence_length: int = 512,
        **options: Any,
    ) -> Iterator[Tensor]:
        """The clean latents of a video, chunk by chunk, [batch, channels, chunk_frames, height, width] in fp32.

        Stop when you like: closing the iterator frees everything.

        Args:
            prompt, negative_prompt, height, width, policy: as for a call.
            latent_frames: how many there are to be; it must be given.
            chunk_frames: latent frames of a chunk.
            timesteps: at which a chunk is denoised, before the noise scheduler's shift; None for `num_inference_steps` of its own.
            guidance_scale: 1 for none; above, every call has the batch twice.
            generator: of the noise; or one for each video.
            max_sequence_length: tokens of a text.
            **options: of the policy, and `cache_dtype`, `cache_device`, `max_cache_bytes`, `memory` of `rollout`.

        Raises:
            ConfigError: as a call.
        """
        factor = self.vae_scale_factor_temporal
        if latent_frames is None:
            raise ConfigError(
                f"stream() makes latent frames: pass latent_frames=, for n frames of pixels (n - 1) / {factor} + 1."
            )
        _check_whole(latent_frames=latent_frames, chunk_frames=chunk_frames, height=height, width=width)
        self._check_size(height, width)
        if negative_prompt is not None:
            check_text("negative_prompt", negative_prompt)
        texts = texts_by_frame(prompt, factor, chunk_frames, latent_frames)
        loop = Loop(
            timesteps,
            num_inference_steps,
            guidance_scale,
            generator,
            (height // self.vae_scale_factor_spatial, width // self.vae_scale_factor_spatial),
        )
        embeds: Tensor | None = None
        with rollout(self.transformer, policy, **options) as video:
            while video.frames < latent_frames:
                if (new := text_at(texts, video.frames, chunk_frames)) is not None:
                    embeds = self._embedded(new, negative_prompt, loop, max_sequence_length)
                assert embeds is not None
                latents = self._denoised(video, min(chunk_frames, latent_frames - video.frames), embeds, loop)
                yield latents

    def _check_size(self, height: int, width: int) -> None:
        """Refuses a size that is not of whole tokens."""
        _, *patch = self.transformer.config.patch_size
        tall, wide = (self.vae_scale_factor_spatial * side for side in patch)
        if height % tall or width % wide:
            raise ConfigError(
                f"height={height}, width={width}: give multiples of {tall} and {wide}, such as "
                f"{max(height // tall, 1) * tall} and {max(width // wide, 1) * wide}."
            )

    def _denoised(self, video: Rollout, frames: int, embeds: Tensor, loop: Loop) -> Tensor:
        """A new chunk, which the rollout then has as its past."""
        batch = len(embeds) // (1 + loop.guides)
        shape = (batch, self.transformer.config.in_channels, frames, *loop.size)
        device, dtype = embeds.device, embeds.dtype
        latents: Tensor = randn_tensor(shape, generator=loop.generator, device=device, dtype=torch.float32)
        if loop.timesteps is None:
            self.scheduler.set_timesteps(loop.steps, device=device)
        else:
            sigmas = [t / self.scheduler.config.num_train_timesteps for t in loop.timesteps]
            self.scheduler.set_timesteps(sigmas=sigmas, device=device)
        steps = self.scheduler.timesteps

        def doubled(tensor: Tensor) -> Tensor:
            return torch.cat((tensor, tensor)).to(dtype) if loop.guides else tensor.to(dtype)

        with denoising_run(self.transformer, len(steps), noise_scheduler=self.scheduler) as run:
            for i, t in enumerate(steps):
                run.begin_step(i)
                output: Tensor = video(doubled(latents), t.expand(len(embeds)), embeds, return_dict=False)[0]
                output = output.float()
                if loop.guides:
                    without, output = output.chunk(2)
                    output = without + loop.guidance_scale * (output - without)
                latents = self._stepped(output, t, latents, loop.generator)
        clean = torch.zeros(len(embeds), device=device)
        video.write(doubled(latents), clean, embeds, return_dict=False)
        return latents

    def _stepped(self, output: Tensor, t: Tensor, latents: Tensor, generator: Any) -> Tensor:
        extra = (
            {"generator": generator} if getattr(self.scheduler.config, "stochastic_sampling", False) else {}
        )
        stepped: Tensor = self.scheduler.step(output, t, latents, return_dict=False, **extra)[0]
        return stepped

    def _embedded(self, text: Any, negative: Any, loop: Loop, length: int) -> Tensor:
        """Texts as the transformer takes them; with guidance those of the negative prompts come first."""
        device = self._execution_device
        positive, without = self.encode_prompt(
            prompt=text,
            negative_prompt=negative,
            do_classifier_free_guidance=loop.guides,
            max_sequence_length=length,
            device=device,
        )
        embeds: Tensor = torch.cat((without, positive)) if loop.guides else positive
        return embeds.to(self.transformer.dtype)

    def _denormalised(self, latents: Tensor) -> Tensor:
        """Latents as the autoencoder takes them."""
        config = self.vae.config
        mean, std = (
            torch.tensor(values, device=latents.device).view(1, -1, 1, 1, 1)
            for values in (config.latents_mean, config.latents_std)
        )
        whole: Tensor = (latents * std + mean).to(self.vae.dtype)
        return whole


def _check_whole(**counts: Any) -> None:
    """Refuses what is no whole number above 0."""
    for name, count in counts.items():
        if not is_count(count):
            raise ConfigError(f"{name}={count!r}: give a whole number, 1 at least.")
