"""A configuration in the form of Fast-dLLM v2's."""

from typing import Any

from transformers.configuration_utils import PretrainedConfig


class Fast_dLLM_QwenConfig(PretrainedConfig):
    model_type = "Fast_dLLM_Qwen"

    def __init__(
        self,
        vocab_size: int = 40,
        hidden_size: int = 32,
        intermediate_size: int = 48,
        num_hidden_layers: int = 3,
        num_attention_heads: int = 4,
        num_key_value_heads: int = 2,
        max_position_embeddings: int = 128,
        initializer_range: float = 0.02,
        rms_norm_eps: float = 1e-6,
        use_cache: bool = True,
        tie_word_embeddings: bool = False,
        rope_theta: float = 10000.0,
        rope_scaling: Any = None,
        bd_size: int = 32,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.max_position_embeddings = max_position_embeddings
        self.initializer_range = initializer_range
        self.rms_norm_eps = rms_norm_eps
        self.use_cache = use_cache
        self.rope_theta = rope_theta
        self.rope_scaling = rope_scaling
        self.bd_size = bd_size
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)
