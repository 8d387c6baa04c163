"""A configuration in the form of LLaDA's: options of a dataclass, all handed to PretrainedConfig."""

from dataclasses import asdict, dataclass
from typing import Any

from transformers import PretrainedConfig


@dataclass
class ModelConfig:
    d_model: int = 32
    n_heads: int = 4
    n_kv_heads: int | None = None
    n_layers: int = 3
    mlp_hidden_size: int = 48
    block_type: str = "llama"
    rope_theta: float = 10000.0
    rope_full_precision: bool = True
    input_emb_norm: bool = False
    scale_logits: bool = False
    weight_tying: bool = False
    vocab_size: int = 40
    embedding_size: int = 40
    max_sequence_length: int = 128
    rms_norm_eps: float = 1e-5
    attention_layer_norm: bool = False
    init_device: str | None = None

    @property
    def effective_n_kv_heads(self) -> int:
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads


class LLaDAConfig(PretrainedConfig):
    model_type = "llada"

    def __init__(self, use_cache: bool = False, **kwargs: Any) -> None:
        super().__init__(**{**asdict(ModelConfig()), **kwargs, "use_cache": use_cache})

    @property
    def num_attention_heads(self) -> int:
        return self.n_heads

    @property
    def num_hidden_layers(self) -> int:
        return self.n_layers

    @property
    def hidden_size(self) -> int:
        return self.d_model
