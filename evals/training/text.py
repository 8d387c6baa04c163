"""Tiny tokenizers and text encoders of the text-to-picture and text-to-clip testbeds."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
    UMT5Config,
    UMT5EncoderModel,
)

from diffcache.evals.testbeds import procedural

LENGTH = 20  # tokens per prompt, padding included; the longest caption has 19


def words() -> list[str]:
    """Every word that can be in a caption, sorted."""
    lists = (
        procedural.SHAPES,
        procedural.COLOURS,
        procedural.TEXTURES,
        procedural.SIZES,
        procedural.POSITIONS,
        procedural.BACKGROUNDS,
        procedural.MOTIONS,
        ("a and background moving on",),
    )
    return sorted({word for phrases in lists for phrase in phrases for word in phrase.split()})


def clip_tokenizer() -> CLIPTokenizer:
    """A byte-pair tokenizer: each word of the captions is one token, and any other word is spelt in letters."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    vocabulary = dict.fromkeys([*letters, *(f"{letter}</w>" for letter in letters)])
    merges: dict[tuple[str, str], None] = {}
    for word in words():
        pieces = [*word[:-1], f"{word[-1]}</w>"]
        while len(pieces) > 1:
            # Merged from the end: each pair then holds the word's last letters, so that words do not share merges.
            pair = (pieces[-2], pieces[-1])
            pieces[-2:] = ["".join(pair)]
            merges[pair] = None
            vocabulary["".join(pair)] = None
    tokens = ["<|startoftext|>", "<|endoftext|>", *vocabulary]
    ids = {token: i for i, token in enumerate(tokens)}
    return CLIPTokenizer(vocab=ids, merges=list(merges), model_max_length=LENGTH, pad_token="<|endoftext|>")


def t5_tokenizer() -> T5Tokenizer:
    """A unigram tokenizer with one token for each word of the captions."""
    vocabulary: list[tuple[str, float]] = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -10.0), ("▁", -8.0)]
    vocabulary += [(f"▁{word}", -2.0) for word in words()]
    return T5Tokenizer(vocab=vocabulary, extra_ids=0, model_max_length=LENGTH)


def clip_encoder(width: int, layers: int = 2, heads: int = 4) -> CLIPTextModel:
    """A CLIP text model over `clip_tokenizer`."""
    tokenizer = clip_tokenizer()
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            projection_dim=width,
            max_position_embeddings=LENGTH,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    ).eval()


def _t5_sizes(width: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "vocab_size": len(t5_tokenizer()),
        "d_model": width,
        "d_kv": width // heads,
        "d_ff": 2 * width,
        "num_layers": layers,
        "num_heads": heads,
        "relative_attention_num_buckets": 16,
        "relative_attention_max_distance": LENGTH,
        "dropout_rate": 0.0,
        "feed_forward_proj": "gated-gelu",
    }


def t5_encoder(width: int, layers: int = 2, heads: int = 4) -> T5EncoderModel:
    """A T5 encoder over `t5_tokenizer`."""
    return T5EncoderModel(T5Config(**_t5_sizes(width, layers, heads))).eval()


def umt5_encoder(width: int, layers: int = 2, heads: int = 4) -> UMT5EncoderModel:
    """A UMT5 encoder over `t5_tokenizer`, as Wan uses."""
    return UMT5EncoderModel(UMT5Config(**_t5_sizes(width, layers, heads))).eval()


def token_ids(tokenizer: Any, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, both [n, LENGTH], padded as in the pipelines."""
    encoded = tokenizer(texts, padding="max_length", max_length=LENGTH, truncation=True, return_tensors="pt")
    return encoded.input_ids, encoded.attention_mask
