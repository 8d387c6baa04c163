"""Image transformers whose blocks take and return a pair: picture and text."""

from __future__ import annotations

import torch
from torch import Generator
from zoo.denoiser_case import Kwargs, case, randn, times, unit
from zoo.image_dits import from_one, picture, sizes
from zoo.shared_inputs import HEADS, TEXT, WIDTH, mask


def sd3(generator: Generator, batch: int) -> Kwargs:
    return picture(generator, batch, pooled_projections=randn(generator, batch, WIDTH))


def glm(generator: Generator, batch: int) -> Kwargs:
    inputs = sizes(generator, batch)
    del inputs["original_size"]
    tokens = torch.randint(0, 32, (batch, 16), generator=generator)
    return inputs | {"prior_token_id": tokens, "prior_token_drop": torch.zeros_like(tokens, dtype=torch.bool)}


def hunyuan_image(generator: Generator, batch: int) -> Kwargs:
    return picture(
        generator,
        batch,
        size=4,
        encoder_attention_mask=mask(batch),
        encoder_hidden_states_2=randn(generator, batch, 4, WIDTH),
        encoder_attention_mask_2=torch.ones(batch, 4, dtype=torch.bool),
        timestep_r=times(batch, 800.0),
        guidance=times(batch, 3.5),
    )


def hidream(generator: Generator, batch: int) -> Kwargs:
    """The text is one tensor per block and a last one; the time's name is a plural."""
    return {
        "hidden_states": randn(generator, batch, 4, 8, 8),
        "timesteps": times(batch, 999.0),
        "encoder_hidden_states_t5": randn(generator, batch, TEXT, WIDTH),
        "encoder_hidden_states_llama3": [randn(generator, batch, TEXT, WIDTH) for _ in range(6)],
        "pooled_embeds": randn(generator, batch, WIDTH),
        "return_dict": False,
    }


def joy(generator: Generator, batch: int) -> Kwargs:
    """Latent and reference pictures in one argument."""
    return picture(generator, batch, hidden_states=randn(generator, batch, 2, 4, 1, 4, 4))


def joy_plus(generator: Generator, batch: int) -> Kwargs:
    """Patches of two pictures in one sequence."""
    return picture(
        generator,
        batch,
        hidden_states=randn(generator, batch, 8, 4, 1, 2, 2),
        encoder_hidden_states_mask=mask(batch, torch.float32),
        shape_list=[[(1, 2, 2), (1, 2, 2)]] * batch,
    )


CASES = [
    case(
        "SD3Transformer2DModel",
        {
            **HEADS,
            "sample_size": 8,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 4,
            "joint_attention_dim": WIDTH,
            "caption_projection_dim": 16,
            "pooled_projection_dim": WIDTH,
            "pos_embed_max_size": 8,
        },
        sd3,
        notes="pairs; the last block returns None for the text",
    ),
    case(
        "SD3Transformer2DModel",
        {
            **HEADS,
            "sample_size": 8,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 4,
            "joint_attention_dim": WIDTH,
            "caption_projection_dim": 16,
            "pooled_projection_dim": WIDTH,
            "pos_embed_max_size": 8,
            "dual_attention_layers": (0, 1),
            "qk_norm": "rms_norm",
        },
        sd3,
        variant="3.5",
        notes="as SD3; two blocks attend twice",
    ),
    case(
        "AuraFlowTransformer2DModel",
        {
            **HEADS,
            "sample_size": 8,
            "num_mmdit_layers": 3,
            "num_single_dit_layers": 3,
            "joint_attention_dim": WIDTH,
            "caption_projection_dim": 16,
            "pos_embed_max_size": 64,
        },
        from_one,
        time_values=unit,
        notes="pairs, then one joined tensor; register tokens before the text",
    ),
    case(
        "HunyuanImageTransformer2DModel",
        {
            **HEADS,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 3,
            "num_single_layers": 3,
            "num_refiner_layers": 1,
            "text_embed_dim": WIDTH,
            "text_embed_2_dim": WIDTH,
            "rope_axes_dim": (4, 4),
            "guidance_embeds": True,
            "use_meanflow": True,
        },
        hunyuan_image,
        next_time="timestep_r",
        notes="pairs throughout; text refiner depends on the time; mean flow takes two times",
    ),
    case(
        "HiDreamImageTransformer2DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "patch_size": 2,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 3,
            "num_single_layers": 3,
            "caption_channels": [WIDTH, WIDTH],
            "text_emb_dim": WIDTH,
            "num_routed_experts": 3,
            "axes_dims_rope": (8, 4, 4),
            "max_resolution": (8, 8),
            "llama_layers": list(range(6)),
            "force_inference_output": True,
        },
        hidream,
        time=("timesteps",),
        text=("encoder_hidden_states_t5", "encoder_hidden_states_llama3", "pooled_embeds"),
        notes="text joined before and cut after each block; pairs, then one tensor; experts; blocks are wrapped",
    ),
    case(
        "CogView3PlusTransformer2DModel",
        {
            **HEADS,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 4,
            "text_embed_dim": WIDTH,
            "time_embed_dim": 16,
            "condition_dim": 4,
            "pos_embed_max_size": 8,
            "sample_size": 8,
        },
        sizes,
        notes="pairs (hidden, encoder)",
    ),
    case(
        "CogView4Transformer2DModel",
        {
            **HEADS,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 4,
            "text_embed_dim": WIDTH,
            "time_embed_dim": 16,
            "condition_dim": 4,
            "pos_embed_max_size": 8,
            "sample_size": 8,
            "rope_axes_dim": (8, 8),
        },
        sizes,
        notes="pairs (hidden, encoder)",
    ),
    case(
        "GlmImageTransformer2DModel",
        {
            **HEADS,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 4,
            "text_embed_dim": WIDTH,
            "time_embed_dim": 16,
            "condition_dim": 4,
            "prior_vq_quantizer_codebook_size": 32,
        },
        glm,
        text=("encoder_hidden_states", "prior_token_id"),
        notes="pairs (hidden, encoder); optional key/value caches written by a call before the loop",
    ),
    case(
        "JoyImageEditTransformer3DModel",
        {
            "in_channels": 4,
            "hidden_size": 32,
            "num_attention_heads": 2,
            "text_dim": WIDTH,
            "num_layers": 4,
            "rope_dim_list": [4, 6, 6],
        },
        joy,
        notes="pairs; latent and reference pictures are one argument",
    ),
    case(
        "JoyImageEditPlusTransformer3DModel",
        {
            "in_channels": 4,
            "hidden_size": 32,
            "num_attention_heads": 2,
            "text_dim": WIDTH,
            "num_layers": 4,
            "rope_dim_list": [4, 6, 6],
        },
        joy_plus,
        notes="pairs; patches of all pictures are one argument",
    ),
]
