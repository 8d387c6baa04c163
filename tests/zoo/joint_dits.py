"""Transformers that denoise several modalities at once: video with audio."""

from __future__ import annotations

import torch
from torch import Generator
from zoo.denoiser_case import Kwargs, case, grid_ids, randn, times
from zoo.shared_inputs import TEXT, WIDTH

LTX2: Kwargs = {
    "in_channels": 4,
    "out_channels": 4,
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "cross_attention_dim": 16,
    "audio_in_channels": 8,
    "audio_out_channels": 8,
    "audio_num_attention_heads": 2,
    "audio_attention_head_dim": 4,
    "audio_cross_attention_dim": 8,
    "num_layers": 4,
    "caption_channels": WIDTH,
    "rope_double_precision": False,
}
BOTH = ("hidden_states", "audio_hidden_states")


def ltx2(generator: Generator, batch: int) -> Kwargs:
    text = torch.ones(batch, TEXT, dtype=torch.long)
    return {
        "hidden_states": randn(generator, batch, 8, 4),
        "audio_hidden_states": randn(generator, batch, 5, 8),
        "encoder_hidden_states": randn(generator, batch, TEXT, WIDTH),
        "audio_encoder_hidden_states": randn(generator, batch, TEXT, WIDTH),
        "timestep": times(batch, 1000.0),
        "sigma": times(batch, 1000.0),
        "encoder_attention_mask": text,
        "audio_encoder_attention_mask": text,
        "num_frames": 2,
        "height": 2,
        "width": 2,
        "fps": 24.0,
        "audio_num_frames": 5,
        "use_cross_timestep": True,
        "return_dict": False,
    }


def ltx2_sigma(generator: Generator, batch: int) -> Kwargs:
    """The text has the width of each stream already."""
    return ltx2(generator, batch) | {"audio_encoder_hidden_states": randn(generator, batch, TEXT, 8)}


def minimax_h3(generator: Generator, batch: int) -> Kwargs:
    """One packed sequence: text, audio, video; rows are told apart by index, and have one of two times."""
    length = TEXT + 4 + 8
    tags = torch.tensor([0] * TEXT + [2] * 4 + [1] * 8)
    grid = torch.cat([grid_ids(2, 2), grid_ids(2, 2) + torch.tensor([1.0, 0.0, 0.0])])
    ids = torch.cat([torch.arange(TEXT + 4)[:, None] * torch.tensor([[1.0, 0.0, 0.0]]), grid])
    return {
        "hidden_states": randn(generator, batch, 8, 16),
        "audio_hidden_states": randn(generator, batch, 4, 8),
        "encoder_hidden_states": randn(generator, batch, TEXT, WIDTH),
        "timestep": torch.tensor([1000.0]),
        "timestep_indices": torch.zeros(length, dtype=torch.long),
        "token_tags": tags,
        "position_ids": ids,
        "video_indices": torch.arange(TEXT + 4, length),
        "audio_indices": torch.arange(TEXT, TEXT + 4),
        "text_indices": torch.arange(TEXT),
        "return_dict": False,
    }


def kandinsky6(generator: Generator, batch: int) -> Kwargs:
    """Channels last; the video argument holds latent, condition and mask."""
    return {
        "hidden_states": randn(generator, batch, 2, 4, 4, 9),
        "audio_hidden_states": randn(generator, batch, 5, 8),
        "encoder_hidden_states": randn(generator, batch, TEXT, WIDTH),
        "pooled_projections": randn(generator, batch, WIDTH),
        "timestep": times(batch, 1000.0),
        "return_dict": False,
    }


def cosmos3(generator: Generator, batch: int) -> Kwargs:
    """One packed sequence without a batch dimension: text that is understood, then clips that are generated."""
    length = TEXT + 8
    ids = torch.arange(length).expand(3, -1)
    return {
        "input_ids": torch.randint(0, 32, (TEXT,), generator=generator),
        "text_indexes": torch.arange(TEXT),
        "position_ids": ids,
        "und_len": TEXT,
        "sequence_length": length,
        "vision_tokens": [randn(generator, 1, 4, 2, 4, 4)],
        "vision_token_shapes": [(2, 2, 2)],
        "vision_sequence_indexes": torch.arange(TEXT, length),
        "vision_mse_loss_indexes": torch.arange(TEXT, length),
        "vision_timesteps": torch.full((8,), 1000.0),
        "vision_noisy_frame_indexes": [torch.arange(2)],
        "return_dict": False,
    }


CASES = [
    case(
        "LTX2VideoTransformer3DModel",
        LTX2,
        ltx2,
        latents=BOTH,
        time=("timestep", "sigma"),
        text=("encoder_hidden_states", "audio_encoder_hidden_states"),
        notes="two streams, video and audio, in each block; packed tokens",
    ),
    case(
        "LTX2VideoTransformer3DModel",
        {
            **LTX2,
            "gated_attn": True,
            "cross_attn_mod": True,
            "audio_gated_attn": True,
            "audio_cross_attn_mod": True,
            "use_prompt_embeddings": False,
            "perturbed_attn": True,
        },
        ltx2_sigma,
        variant="2.3",
        latents=BOTH,
        time=("timestep", "sigma"),
        text=("encoder_hidden_states", "audio_encoder_hidden_states"),
        notes="two streams; the text is modulated by the time",
    ),
    case(
        "MiniMaxH3Transformer3DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "hidden_size": 32,
            "num_layers": 4,
            "num_refiner_layers": 1,
            "ffn_dim": 32,
            "in_channels": 4,
            "audio_in_channels": 8,
            "text_dim": WIDTH,
            "freq_dim": 16,
            "time_embed_hidden_dim": 16,
            "time_embed_dim": 16,
            "rope_freq_dim": 2,
        },
        minimax_h3,
        latents=BOTH,
        notes="text, audio and video rows are one sequence; the time is one number for the whole batch",
    ),
    case(
        "Kandinsky6Transformer3DModel",
        {
            "in_visual_dim": 4,
            "out_visual_dim": 4,
            "in_text_dim": WIDTH,
            "in_text_dim2": WIDTH,
            "time_dim": 16,
            "model_dim": 32,
            "ff_dim": 32,
            "num_text_blocks": 3,
            "num_visual_blocks": 4,
            "axes_dims": (4, 6, 6),
            "in_audio_dim": 8,
            "out_audio_dim": 8,
            "scale_factor": (1.0, 1.0, 1.0),
        },
        kandinsky6,
        latents=BOTH,
        notes="two streams, video and audio, after two lists of text blocks; 9 channels in, 4 out",
    ),
    case(
        "Cosmos3OmniTransformer",
        {
            "head_dim": 16,
            "hidden_size": 32,
            "intermediate_size": 32,
            "latent_channel": 4,
            "num_attention_heads": 2,
            "num_hidden_layers": 4,
            "num_key_value_heads": 1,
            "patch_latent_dim": 16,
            "vocab_size": 32,
            "rope_axes_dim": (4, 2, 2),
        },
        cosmos3,
        latents=("vision_tokens",),
        time=("vision_timesteps",),
        text=("input_ids",),
        notes="pairs without a batch dimension: text that does not see the clip, and the clip; lists; None in the output",
    ),
]
