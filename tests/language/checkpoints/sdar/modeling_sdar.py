"""A model in the form of SDAR's: Qwen3's names; its caller passes the mask of pairs."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.cache_utils import Cache, SlidingWindowCache, StaticCache  # noqa: F401 (as SDAR has them)
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import LossKwargs

from .configuration_sdar import SDARConfig


class KwargsForCausalLM(LossKwargs): ...


class SDARRMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        exact = x.float()
        normed = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * normed.to(x.dtype)


class SDARRotaryEmbedding(nn.Module):
    def __init__(self, config: SDARConfig, device: Any = None) -> None:
        super().__init__()
        scaling = getattr(config, "rope_scaling", None)
        self.rope_type = (scaling.get("rope_type") or scaling.get("type")) if scaling else "default"
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


class SDARAttention(nn.Module):
    def __init__(self, config: SDARConfig) -> None:
        super().__init__()
        self.head_dim, bias = config.head_dim, config.attention_bias
        queries = config.num_attention_heads * self.head_dim
        kv = config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, kv, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, kv, bias=bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=bias)
        self.q_norm = SDARRMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = SDARRMSNorm(self.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, mask: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.head_dim))
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k, v = (t.transpose(1, 2) for t in (self.q_norm(q), self.k_norm(k), v))
        q, k = apply_rotary_pos_emb(q, k, *positions)
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask.bool(), enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class SDARMLP(nn.Module):
    def __init__(self, config: SDARConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class SDARDecoderLayer(nn.Module):
    def __init__(self, config: SDARConfig) -> None:
        super().__init__()
        self.self_attn = SDARAttention(config)
        self.mlp = SDARMLP(config)
        self.input_layernorm = SDARRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = SDARRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, mask: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), mask, positions)
        return x + self.mlp(self.post_attention_layernorm(x))


class SDARPreTrainedModel(PreTrainedModel):
    config_class = SDARConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=self.config.initializer_range)


class SDARModel(SDARPreTrainedModel):
    def __init__(self, config: SDARConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(SDARDecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = SDARRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = SDARRotaryEmbedding(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def forward(self, input_ids: Tensor, mask: Tensor, position_ids: Tensor | None) -> Tensor:
        x = self.embed_tokens(input_ids)
        if position_ids is None:
            position_ids = torch.arange(x.shape[1], device=x.device)[None]
        positions = self.rotary_emb(x, position_ids)
        for layer in self.layers:
            x = layer(x, mask, positions)
        return self.norm(x)


class SDARForCausalLM(SDARPreTrainedModel):
    _tied_weights_keys = ["lm_head.weight"]  # noqa: RUF012 (as transformers 4 had it)

    def __init__(self, config: SDARConfig) -> None:
        super().__init__(config)
        self.model = SDARModel(config)
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
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> Any:
        x = self.model(input_ids, attention_mask, position_ids)
        return CausalLMOutputWithPast(logits=self.lm_head(x[:, -logits_to_keep:]))
