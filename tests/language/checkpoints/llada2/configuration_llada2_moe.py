"""A configuration in the form of LLaDA2's."""

from typing import Any

from transformers.configuration_utils import PretrainedConfig


class LLaDA2MoeConfig(PretrainedConfig):
    model_type = "llada2_moe"

    def __init__(
        self,
        vocab_size: int = 40,
        hidden_size: int = 32,
        intermediate_size: int = 48,
        num_hidden_layers: int = 3,
        num_attention_heads: int = 4,
        num_key_value_heads: int = 2,
        use_qkv_bias: bool = False,
        use_qk_norm: bool = True,
        use_bias: bool = False,
        rms_norm_eps: float = 1e-5,
        tie_word_embeddings: bool = False,
        initializer_range: float = 0.02,
        max_position_embeddings: int = 128,
        rope_theta: float = 10000.0,
        use_cache: bool = True,
        rope_scaling: Any = None,
        pad_token_id: int = 0,
        num_experts: int = 4,
        num_shared_experts: int = 1,
        num_experts_per_tok: int = 2,
        routed_scaling_factor: float = 2.5,
        moe_intermediate_size: int = 16,
        first_k_dense_replace: int = 1,
        head_dim: int | None = None,
        partial_rotary_factor: float = 0.5,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.use_qkv_bias = use_qkv_bias
        self.use_qk_norm = use_qk_norm
        self.use_bias = use_bias
        self.rms_norm_eps = rms_norm_eps
        self.initializer_range = initializer_range
        self.max_position_embeddings = max_position_embeddings
        self.rope_theta = rope_theta
        self.use_cache = use_cache
        self.head_dim = head_dim or hidden_size // num_attention_heads
        self.rope_scaling = rope_scaling
        self.num_experts = num_experts
        self.num_shared_experts = num_shared_experts
        self.num_experts_per_tok = num_experts_per_tok
        self.routed_scaling_factor = routed_scaling_factor
        self.moe_intermediate_size = moe_intermediate_size
        self.first_k_dense_replace = first_k_dense_replace
        self.partial_rotary_factor = partial_rotary_factor
        super().__init__(pad_token_id=pad_token_id, tie_word_embeddings=tie_word_embeddings, **kwargs)
