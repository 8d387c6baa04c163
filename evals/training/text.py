"""Tiny tokenizers and text encoders of the text-to-picture and text-to-clip testbeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    Gemma2Config,
    Gemma2Model,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
    UMT5Config,
    UMT5EncoderModel,
)

from diffcache.evals.testbeds import procedural

LENGTH = 20  # tokens per prompt, padding included; the longest caption has 19


@dataclass(frozen=True)
class Vocabulary:
    """The words that captions are made of, each one token, and the tokens per prompt, padding included."""

    words: Sequence[str]
    length: int


def shape_words() -> list[str]:
    """Every word that can be in a caption of shapes, sorted."""
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


SHAPES = Vocabulary(shape_words(), LENGTH)


def clip_tokenizer(vocabulary: Vocabulary = SHAPES) -> CLIPTokenizer:
    """A byte-pair tokenizer: each word of the captions is one token, and any other word is spelt in letters."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces_of_words = dict.fromkeys([*letters, *(f"{letter}</w>" for letter in letters)])
    merges: dict[tuple[str, str], None] = {}
    for word in vocabulary.words:
        pieces = [*word[:-1], f"{word[-1]}</w>"]
        while len(pieces) > 1:
            # Merged from the end: each pair then holds the word's last letters, so that words do not share merges.
            pair = (pieces[-2], pieces[-1])
            pieces[-2:] = ["".join(pair)]
            merges[pair] = None
            pieces_of_words["".join(pair)] = None
    tokens = ["<|startoftext|>", "<|endoftext|>", *pieces_of_words]
    ids = {token: i for i, token in enumerate(tokens)}
    return CLIPTokenizer(
        vocab=ids, merges=list(merges), model_max_length=vocabulary.length, pad_token="<|endoftext|>"
    )


def t5_tokenizer(vocabulary: Vocabulary = SHAPES) -> T5Tokenizer:
    """A unigram tokenizer with one token for each word of the captions."""
    pieces: list[tuple[str, float]] = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -10.0), ("▁", -8.0)]
    pieces += [(f"▁{word}", -2.0) for word in vocabulary.words]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=vocabulary.length)


def _clip_config(width: int, vocabulary: Vocabulary) -> CLIPTextConfig:
    tokenizer = clip_tokenizer(vocabulary)
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        projection_dim=width,
        max_position_embeddings=vocabulary.length,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def clip_encoder(width: int, vocabulary: Vocabulary = SHAPES) -> CLIPTextModel:
    """A CLIP text model over `clip_tokenizer`."""
    return CLIPTextModel(_clip_config(width, vocabulary)).eval()


def clip_encoder_with_projection(width: int, vocabulary: Vocabulary) -> CLIPTextModelWithProjection:
    """A CLIP text model whose pooled output is projected, as SD3 and SDXL use."""
    return CLIPTextModelWithProjection(_clip_config(width, vocabulary)).eval()


def _t5_sizes(width: int, vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "vocab_size": len(t5_tokenizer(vocabulary)),
        "d_model": width,
        "d_kv": width // 4,
        "d_ff": 2 * width,
        "num_layers": 2,
        "num_heads": 4,
        "relative_attention_num_buckets": 16,
        "relative_attention_max_distance": vocabulary.length,
        "dropout_rate": 0.0,
        "feed_forward_proj": "gated-gelu",
    }


def t5_encoder(width: int, vocabulary: Vocabulary = SHAPES) -> T5EncoderModel:
    """A T5 encoder over `t5_tokenizer`."""
    return T5EncoderModel(T5Config(**_t5_sizes(width, vocabulary))).eval()


def gemma_encoder(width: int, vocabulary: Vocabulary) -> Gemma2Model:
    """A Gemma 2 language model over `t5_tokenizer`, as Sana reads prompts with."""
    config = Gemma2Config(
        vocab_size=len(t5_tokenizer(vocabulary)),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=width // 4,
        query_pre_attn_scalar=width // 4,
        max_position_embeddings=vocabulary.length,
        sliding_window=vocabulary.length,
        use_cache=False,
    )
    return Gemma2Model(config).eval()


def umt5_encoder(width: int) -> UMT5EncoderModel:
    """A UMT5 encoder over the `t5_tokenizer` of shapes, as Wan uses."""
    return UMT5EncoderModel(UMT5Config(**_t5_sizes(width, SHAPES))).eval()


def token_ids(tokenizer: Any, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, both [n, LENGTH], padded as in the pipelines."""
    encoded = tokenizer(texts, padding="max_length", max_length=LENGTH, truncation=True, return_tensors="pt")
    return encoded.input_ids, encoded.attention_mask
