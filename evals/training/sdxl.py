"""The SDXL testbed: emoji from their names, by a UNet that predicts the noise."""

from __future__ import annotations

import torch
from diffusers import (
    AutoencoderKL,
    EulerDiscreteScheduler,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from torch import Tensor, nn

from diffcache.evals.training import emoji, text
from diffcache.evals.training.common import drawn, informative_timesteps
from diffcache.evals.training.loop import Progress, Training
from diffcache.evals.training.noise_prediction import noise_loss, noisy
from diffcache.evals.training.sd import is_matrix

_BATCH = 32
_TEXT_WIDTH = 64
_SIZE_WIDTH = 16
_WIDTHS = (48, 64, 80)


def build(vae: AutoencoderKL) -> StableDiffusionXLPipeline:
    """A UNet with most transformer layers at its lowest level, told of sizes and of the pooled text.

    The larger of SDXL's two text encoders is enough. The noise scheduler is the one that SDXL ships.
    """
    unet = UNet2DConditionModel(
        sample_size=16,
        in_channels=8,
        out_channels=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=_WIDTHS,
        layers_per_block=1,
        transformer_layers_per_block=(1, 1, 3),
        cross_attention_dim=_TEXT_WIDTH,
        attention_head_dim=tuple(width // 16 for width in _WIDTHS),  # despite its name the number of heads
        norm_num_groups=8,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=_SIZE_WIDTH,
        projection_class_embeddings_input_dim=_TEXT_WIDTH + 6 * _SIZE_WIDTH,
    )
    nn.init.zeros_(unet.conv_out.weight)
    pipe = StableDiffusionXLPipeline(
        vae=vae,
        text_encoder=None,
        text_encoder_2=text.clip_encoder_with_projection(_TEXT_WIDTH, emoji.vocabulary()),
        tokenizer=None,
        tokenizer_2=text.clip_tokenizer(emoji.vocabulary()),
        unet=unet.eval(),
        scheduler=EulerDiscreteScheduler(
            beta_start=0.00085,
            beta_end=0.012,
            beta_schedule="scaled_linear",
            timestep_spacing="leading",
            steps_offset=1,
        ),
        add_watermarker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def train(training: Training) -> Progress:
    """Trains denoiser and text encoder together and saves the pipeline to `training.out`."""
    device = training.device
    pipe, data, texts = emoji.begun(build, training)
    alphas = pipe.scheduler.alphas_cumprod.to(device)
    side = float(emoji.SIDE)
    sizes = torch.tensor([side, side, 0.0, 0.0, side, side], device=device).repeat(_BATCH, 1)

    def loss(generator: torch.Generator) -> Tensor:
        clean, rows = drawn(data.latents, _BATCH, generator)
        t = informative_timesteps(_BATCH, alphas, generator)
        noise = torch.randn(clean.shape, generator=generator, device=device)
        prompts = [texts[i] for i in rows.tolist()]
        states, _, pooled, _ = pipe.encode_prompt(prompts, do_classifier_free_guidance=False)
        # Without a negative prompt SDXL guides against zeros.
        asked = (rows < len(data.captions)).float()
        output = pipe.unet(
            noisy(clean, noise, alphas, t),
            t,
            encoder_hidden_states=states * asked[:, None, None],
            added_cond_kwargs={"text_embeds": pooled * asked[:, None], "time_ids": sizes},
            return_dict=False,
        )[0]
        return noise_loss(output, noise, alphas, t)

    parts = ("unet", "text_encoder_2")
    return emoji.train_together(pipe, parts, loss, training, steps=30, is_matrix=is_matrix, lr=2e-3)
