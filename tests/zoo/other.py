"""Denoisers of other kinds: priors, cascades, proteins, one transformer for several data types."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from zoo.denoiser_case import Kwargs, case, randn, rising, times, train_steps, unit
from zoo.shared_inputs import TEXT, WIDTH

PIPELINES = "pipelines.deprecated"


def prior(generator: Generator, batch: int) -> Kwargs:
    """The latent is one embedding."""
    return {
        "hidden_states": randn(generator, batch, WIDTH),
        "timestep": torch.tensor(999),
        "proj_embedding": randn(generator, batch, WIDTH),
        "encoder_hidden_states": randn(generator, batch, TEXT, WIDTH),
        "attention_mask": torch.ones(batch, TEXT, dtype=torch.bool),
        "return_dict": True,
    }


def wuerstchen_prior(generator: Generator, batch: int) -> Kwargs:
    return {
        "x": randn(generator, batch, 4, 4, 4),
        "r": times(batch),
        "c": randn(generator, batch, TEXT, WIDTH),
    }


def wuerstchen_decoder(generator: Generator, batch: int) -> Kwargs:
    return {
        "x": randn(generator, batch, 4, 8, 8),
        "r": times(batch),
        "effnet": randn(generator, batch, 4, 2, 2),
        "clip": randn(generator, batch, TEXT, WIDTH),
    }


def uni_diffuser(generator: Generator, batch: int) -> Kwargs:
    """Picture, its embedding and the text are denoised together, each with its own time."""
    return {
        "latent_image_embeds": randn(generator, batch, 4, 8, 8),
        "image_embeds": randn(generator, batch, 1, WIDTH),
        "prompt_embeds": randn(generator, batch, TEXT, WIDTH),
        "timestep_img": torch.tensor(999),
        "timestep_text": torch.tensor(999),
        "data_type": 1,
    }


def flat(generator: Generator, batch: int) -> Kwargs:
    """The latent has features and no picture plane."""
    return {
        "sample": randn(generator, batch, WIDTH, 4, 1),
        "timestep": torch.tensor(999),
        "encoder_hidden_states": randn(generator, batch, TEXT, WIDTH),
        "return_dict": False,
    }


def protein(generator: Generator, batch: int) -> Kwargs:
    """A chain of eight residues: positions and local latents, each with its own time."""
    everywhere = torch.ones(batch, 8, dtype=torch.bool)
    conditioning = {"is_in_context_conditioning": ~everywhere, "supports_local_latent": everywhere}
    return {
        "bb_ca": randn(generator, batch, 8, 3),
        "local_latents": randn(generator, batch, 8, 4),
        "bb_ca_time": times(batch, 0.0),
        "local_latents_time": times(batch, 0.0),
        "padding_mask": everywhere,
        "conditioning": conditioning,
        "recycle_depth": 2,
    }


def codebook(generator: Generator, batch: int) -> Kwargs:
    """Sixteen tokens of a codebook of 32, all masked."""
    return {
        "hidden_states": torch.full((batch, 16), 32),
        "encoder_hidden_states": randn(generator, batch, TEXT, WIDTH),
        "timestep": torch.tensor(99),
        "return_dict": True,
    }


def settle(inputs: Kwargs, outputs: list[Tensor], step: int, num_steps: int) -> Kwargs:
    """Give the next tokens their likeliest value."""
    tokens = inputs["hidden_states"].clone()
    place = slice(16 * step // num_steps, 16 * (step + 1) // num_steps)
    tokens[:, place] = outputs[0].argmax(1)[:, place]
    return {**inputs, "hidden_states": tokens}


def hundred(num_steps: int) -> list[float]:
    return [99.0 - 100 * i // num_steps for i in range(num_steps)]


FLAT_LEVELS = {
    "down_block_types": ("CrossAttnDownBlockFlat", "CrossAttnDownBlockFlat", "DownBlockFlat"),
    "up_block_types": ("UpBlockFlat", "CrossAttnUpBlockFlat", "CrossAttnUpBlockFlat"),
}
CASES = [
    case(
        "PriorTransformer",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "num_layers": 4,
            "embedding_dim": WIDTH,
            "num_embeddings": TEXT,
        },
        prior,
        time_values=train_steps,
        notes="text, condition, time and latent are tokens of one causal sequence; the last is the output",
    ),
    case(
        "Transformer2DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "num_layers": 4,
            "cross_attention_dim": WIDTH,
            "attention_bias": True,
            "sample_size": 4,
            "num_vector_embeds": 33,
            "num_embeds_ada_norm": 100,
            "norm_type": "ada_norm",
            "activation_fn": "geglu-approximate",
        },
        codebook,
        variant="tokens",
        time_values=hundred,
        step=settle,
        notes="latents are whole numbers; the output is a log-probability per token",
    ),
    case(
        f"{PIPELINES}.wuerstchen:WuerstchenPrior",
        {"c_in": 4, "c": 16, "c_cond": WIDTH, "c_r": 8, "depth": 3, "nhead": 2, "dropout": 0.0},
        wuerstchen_prior,
        latents=("x",),
        time=("r",),
        time_values=unit,
        text=("c",),
        notes="one list of unlike blocks with unlike arguments; the forward returns a bare tensor",
    ),
    case(
        f"{PIPELINES}.wuerstchen:WuerstchenDiffNeXt",
        {
            "c_r": 8,
            "c_cond": 16,
            "c_hidden": [8, 16],
            "nhead": [-1, 2],
            "blocks": [2, 3],
            "level_config": ["CT", "CTA"],
            "inject_effnet": [False, True],
            "effnet_embd": 4,
            "clip_embd": WIDTH,
            "dropout": 0.0,
        },
        wuerstchen_decoder,
        latents=("x",),
        time=("r",),
        time_values=unit,
        text=("clip",),
        notes="lists of lists of unlike blocks; skips between depths; the forward returns a bare tensor",
    ),
    case(
        f"{PIPELINES}.unidiffuser:UniDiffuserModel",
        {
            "text_dim": WIDTH,
            "clip_img_dim": WIDTH,
            "num_text_tokens": TEXT,
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 6,
            "sample_size": 8,
            "patch_size": 2,
            "activation_fn": "gelu",
            "num_embeds_ada_norm": 1000,
            "norm_num_groups": 4,
            "attention_bias": False,
            "use_data_type_embedding": True,
            "block_type": "unidiffuser",
        },
        uni_diffuser,
        latents=("latent_image_embeds", "image_embeds", "prompt_embeds"),
        time=("timestep_img", "timestep_text"),
        time_values=train_steps,
        text=(),
        notes="everything is one sequence; skips from the first half to the second; three outputs",
    ),
    case(
        f"{PIPELINES}.versatile_diffusion.modeling_text_unet:UNetFlatConditionModel",
        {
            **FLAT_LEVELS,
            "in_channels": WIDTH,
            "out_channels": WIDTH,
            "block_out_channels": (8, 16, 16),
            "cross_attention_dim": WIDTH,
            "attention_head_dim": 2,
            "norm_num_groups": 4,
            "layers_per_block": 1,
        },
        flat,
        latents=("sample",),
        time_values=train_steps,
        notes="a UNet over one embedding",
    ),
    case(
        "RFD4ProteinaTransformer",
        {
            "nlayers": 4,
            "token_dim": 16,
            "nheads": 2,
            "dim_cond": 16,
            "pair_repr_dim": 8,
            "latent_dim": 4,
            "t_emb_dim": 8,
            "seq_sep_dim": 8,
            "tri_mult_c": 8,
            "xt_pair_dist_dim": 4,
            "feats_seq": ("xt_bb_ca", "xt_local_latents"),
            "feats_cond_seq": ("time_emb_bb_ca", "time_emb_local_latents", "recycle_remaining"),
            "feats_pair_repr": ("xt_bb_ca_pair_dists",),
            "feats_pair_cond": ("time_emb_bb_ca", "time_emb_local_latents"),
            "num_sequence_classes": 5,
        },
        protein,
        latents=("bb_ca", "local_latents"),
        time=("bb_ca_time", "local_latents_time"),
        time_values=rising,
        text=(),
        notes="the stack of blocks runs several times in one forward; a pair stream is updated by another list; time rises",
    ),
]
