"""A model in the form of Fast-dLLM v2's: Qwen2's names, a mask of blocks of its own, logits for the next token.

Whatever attention mask it is given, it sees a block and what is before it, and no padding is left out.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update
from transformers.modeling_utils import PreTrainedModel

from .configuration import Fast_dLLM_QwenConfig


class Fast_dLLM_QwenRMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        exact = x.float()
        normed = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * normed.to(x.dtype)


class Fast_dLLM_QwenRotaryEmbedding(nn.Module):
    def __init__(self, config: Fast_dLLM_QwenConfig, device: Any = None) -> None:
        super().__init__()
        scaling = config.rope_scaling
        self.rope_type = scaling.get("rope_type", "default") if isinstance(scaling, dict) else "default"
        self.config = config
        self.rope_init_fn = ROPE_INIT_FUNCTIONS[self.rope_type]
        inv_freq, self.attention_scaling = self.rope_init_fn(config, device)
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.original_inv_freq = self.inv_freq

    @torch.no_grad()
    @dynamic_rope_update
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None].float() * self.inv_freq.float()
        both = torch.cat([angles, angles], dim=-1)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)


def rotate_half(x: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat([-right, left], dim=-1)


def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


class Fast_dLLM_QwenAttention(nn.Module):
    def __init__(self, config: Fast_dLLM_QwenConfig) -> None:
        super().__init__()
        self.head_dim = config.hidden_size // config.num_attention_heads
        kv = config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=True)
        self.k_proj = nn.Linear(config.hidden_size, kv, bias=True)
        self.v_proj = nn.Linear(config.hidden_size, kv, bias=True)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, mask: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, *positions)
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Fast_dLLM_QwenMLP(nn.Module):
    def __init__(self, config: Fast_dLLM_QwenConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Fast_dLLM_QwenDecoderLayer(nn.Module):
    def __init__(self, config: Fast_dLLM_QwenConfig) -> None:
        super().__init__()
        self.self_attn = Fast_dLLM_QwenAttention(config)
        self.mlp = Fast_dLLM_QwenMLP(config)
        self.input_layernorm = Fast_dLLM_QwenRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Fast_dLLM_QwenRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, mask: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), mask, positions)
        return x + self.mlp(self.post_attention_layernorm(x))


class Fast_dLLM_QwenPreTrainedModel(PreTrainedModel):
    config_class = Fast_dLLM_QwenConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=self.config.initializer_range)


class Fast_dLLM_QwenModel(Fast_dLLM_QwenPreTrainedModel):
    def __init__(self, config: Fast_dLLM_QwenConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        layers = (Fast_dLLM_QwenDecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.layers = nn.ModuleList(layers)
        self.norm = Fast_dLLM_QwenRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = Fast_dLLM_QwenRotaryEmbedding(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def forward(self, input_ids: Tensor, position_ids: Tensor | None, block_size: int) -> Tensor:
        x = self.embed_tokens(input_ids)
        block = torch.arange(x.shape[1], device=x.device) // block_size
        if position_ids is None:
            position_ids = torch.arange(x.shape[1], device=x.device)[None]
        positions = self.rotary_emb(x, position_ids)
        for layer in self.layers:
            x = layer(x, block[:, None] >= block, positions)
        return self.norm(x)


class Fast_dLLM_QwenForCausalLM(Fast_dLLM_QwenPreTrainedModel):
    _tied_weights_keys = ["lm_head.weight"]  # noqa: RUF012 (as transformers 4 had it)

    def __init__(self, config: Fast_dLLM_QwenConfig) -> None:
        super().__init__(config)
        self.model = Fast_dLLM_QwenModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        block_size: int = 32,
        **kwargs: Any,
    ) -> Any:
        return CausalLMOutputWithPast(logits=self.lm_head(self.model(input_ids, position_ids, block_size)))
