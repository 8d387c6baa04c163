"""A configuration in the form of LLaDA-MoE's."""

from collections.abc import Sequence
from typing import Any

from transformers import PretrainedConfig
from transformers.modeling_rope_utils import rope_config_validation


class LLaDAConfig(PretrainedConfig):
    model_type = "llada"

    def __init__(
        self,
        vocab_size: int = 40,
        hidden_size: int = 32,
        dense_intermediate_size: int = 48,
        expert_intermediate_size: int = 16,
        shared_expert_intermediate_size: int | None = None,
        num_hidden_layers: int = 3,
        num_attention_heads: int = 4,
        num_key_value_heads: int = 2,
        num_experts: int = 4,
        num_experts_per_tok: int = 2,
        moe_layer_freq: Sequence[int] = (0, 1, 1),
        qk_layernorm: bool = True,
        max_position_embeddings: int = 128,
        initializer_range: float = 0.02,
        rms_norm_eps: float = 1e-5,
        use_cache: bool = False,
        pad_token_id: int = 0,
        tie_word_embeddings: bool = False,
        rope_theta: float = 50000.0,
        partial_rotary_factor: float = 1.0,
        rope_scaling: Any = None,
        **kwargs: Any,
    ) -> None:
        given = dict(locals())
        for name in ("self", "kwargs", "pad_token_id", "tie_word_embeddings", "__class__"):
            given.pop(name)
        for name, value in given.items():
            setattr(self, name, value)
        rope_config_validation(self)
        super().__init__(pad_token_id=pad_token_id, tie_word_embeddings=tie_word_embeddings, **kwargs)
