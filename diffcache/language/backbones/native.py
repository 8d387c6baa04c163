"""Transformers' own classes: their forward, with a cache of Transformers' kind (`walks/own_forward.py`)."""

import inspect
from typing import Any

import torch
from torch import Tensor

from diffcache.language.backbones.base import Backbone, Net, pairs
from diffcache.language.backbones.llama import LlamaLike
from diffcache.schedulers.errors import TargetError

_TAKES = {"attention_mask", "position_ids", "past_key_values", "logits_to_keep"}


class Native(Net):
    """A causal language model of Transformers, called with `is_causal=False` in its configuration."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, model.get_decoder().layers)
        config = model.config
        self.heads, self.width = config.num_attention_heads, config.hidden_size
        self.kv_heads = getattr(config, "num_key_value_heads", None) or self.heads
        self.head_dim = getattr(config, "head_dim", None) or self.width // self.heads
        self.vocabulary = config.vocab_size

    def call(self, tokens: Tensor, real: Tensor | None, block: int | None) -> Tensor:
        """As Transformers masks padding; blocks as a mask of pairs."""
        seen = None if real is None else real.long()
        if block is not None:
            every = pairs(tokens, real, block)
            seen = None if every is None else self.as_mask(every.expand(-1, -1, tokens.shape[1], -1))
        logits: Tensor = self.model(tokens, attention_mask=seen).logits
        return logits

    def as_mask(self, seen: Tensor) -> Tensor:
        """A mask of pairs as the model's attention takes it; `seen` is bool [b, 1, n or 1, S].

        Raises:
            TargetError: an attention that takes none.
        """
        kind = self.model.config._attn_implementation
        if kind == "sdpa":
            return seen
        if kind != "eager":
            raise TargetError(
                f"attn_implementation={kind!r} takes no mask of pairs, which padding and blocks need: load the model "
                'with attn_implementation="sdpa", or give it texts of one length.'
            )
        lowest = torch.finfo(self.dtype).min
        return torch.zeros_like(seen, dtype=self.dtype).masked_fill(~seen, lowest)

    def parts(self) -> Backbone:
        layer = self.layers[0]
        named = all(hasattr(layer, name) for name in ("input_layernorm", "post_attention_layernorm", "mlp"))
        if not named or not hasattr(getattr(layer, "self_attn", None), "q_proj"):
            raise TargetError(
                f"the parts of {type(self.model).__name__} are not known, and this method looks into layers: choose one "
                "that only skips rows, such as fast-dllm-dual or dkv-decode."
            )
        return LlamaLike(self.model, self.token_shift, self.block_attention)

    def check_length(self, length: int) -> None:
        """Checks that texts of so many positions are attended whole.

        Raises:
            TargetError: the model attends a window that is shorter.
        """
        config = self.model.config
        kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
        for kind, name in (
            ("sliding_attention", "sliding_window"),
            ("chunked_attention", "attention_chunk_size"),
        ):
            size = getattr(config, name, None) if kind in kinds else None
            if size is not None and size < length:
                raise TargetError(
                    f"{type(self.model).__name__} attends only {size} tokens around each ({name}={size}), and the text "
                    f"has {length}: a cache would attend them all. Keep prompt and answer within {size} tokens."
                )


def is_native(model: Any) -> bool:
    """Whether this is a causal language model of Transformers' own whose forward takes a cache and positions, and whose decoder has `layers`."""
    from transformers import PreTrainedModel

    own = isinstance(model, PreTrainedModel) and not model.is_custom_code()
    return (
        own
        and hasattr(model.get_decoder(), "layers")
        and inspect.signature(model.forward).parameters.keys() >= _TAKES
    )
