"""A model in the form of LLaDA-MoE's: OLMoE's names, norms of heads, a shared expert beside the routed ones."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import MoeCausalLMOutputWithPast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import PreTrainedModel
from transformers.pytorch_utils import ALL_LAYERNORM_LAYERS

from .configuration_lladamoe import LLaDAConfig


class LLaDAMoERMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        exact = x.float()
        normed = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * normed.to(x.dtype)


ALL_LAYERNORM_LAYERS.append(LLaDAMoERMSNorm)


class LLaDAMoERotaryEmbedding(nn.Module):
    def __init__(self, config: LLaDAConfig, device: Any = None) -> None:
        super().__init__()
        self.config, self.rope_type = config, "default"
        self.rope_init_fn = ROPE_INIT_FUNCTIONS[self.rope_type]
        inv_freq, self.attention_scaling = self.rope_init_fn(config, device)
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.original_inv_freq = self.inv_freq

    @torch.no_grad()
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


class LLaDAMoEAttention(nn.Module):
    def __init__(self, config: LLaDAConfig) -> None:
        super().__init__()
        self.head_dim = config.hidden_size // config.num_attention_heads
        kv = config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        if config.qk_layernorm:
            self.q_norm = LLaDAMoERMSNorm(self.head_dim, config.rms_norm_eps)
            self.k_norm = LLaDAMoERMSNorm(self.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.head_dim))
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if "q_norm" in dir(self):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        q, k = apply_rotary_pos_emb(q, k, *positions)
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=None, is_causal=False)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class LLaDAMoEMLP(nn.Module):
    def __init__(self, config: LLaDAConfig, kind: str) -> None:
        super().__init__()
        inner = getattr(config, f"{kind}_intermediate_size")
        self.gate_proj = nn.Linear(config.hidden_size, inner, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, inner, bias=False)
        self.down_proj = nn.Linear(inner, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class LLaDAMoESparseMoeBlock(nn.Module):
    def __init__(self, config: LLaDAConfig) -> None:
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.gate = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.experts = nn.ModuleList(LLaDAMoEMLP(config, "expert") for _ in range(config.num_experts))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1, dtype=torch.float).topk(self.top_k, dim=-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            share = (weights * (chosen == index)).sum(-1, keepdim=True).to(x.dtype)
            out = out + share * expert(x)
        return out


class LLaDAMoEDecoderLayer(nn.Module):
    def __init__(self, config: LLaDAConfig, layer: int) -> None:
        super().__init__()
        routed = config.moe_layer_freq[layer] == 1
        self.self_attn = LLaDAMoEAttention(config)
        self.mlp = LLaDAMoESparseMoeBlock(config) if routed else LLaDAMoEMLP(config, "dense")
        self.input_layernorm = LLaDAMoERMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = LLaDAMoERMSNorm(config.hidden_size, config.rms_norm_eps)
        if config.shared_expert_intermediate_size is not None and routed:
            self.shared_expert = LLaDAMoEMLP(config, "shared_expert")

    def forward(self, x: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions)
        normed = self.post_attention_layernorm(x)
        out = self.mlp(normed)
        if hasattr(self, "shared_expert"):
            out = out + self.shared_expert(normed)
        return x + out


class LLaDAMoEPreTrainedModel(PreTrainedModel):
    config_class = LLaDAConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=self.config.initializer_range)


class LLaDAMoEModel(LLaDAMoEPreTrainedModel):
    def __init__(self, config: LLaDAConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(LLaDAMoEDecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = LLaDAMoERMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = LLaDAMoERotaryEmbedding(config)
        self.post_init()

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed_tokens(input_ids)
        positions = self.rotary_emb(x, torch.arange(input_ids.shape[1], device=x.device)[None])
        for layer in self.layers:
            x = layer(x, positions)
        return self.norm(x)


class LLaDAMoEModelLM(LLaDAMoEPreTrainedModel):
    _tied_weights_keys = ["lm_head.weight"]  # noqa: RUF012 (as transformers 4 had it)

    def __init__(self, config: LLaDAConfig) -> None:
        super().__init__(config)
        self.model = LLaDAMoEModel(config)
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
        output_router_logits: bool | None = None,
        return_dict: bool | None = None,
        num_logits_to_keep: int = 0,
    ) -> Any:
        assert num_logits_to_keep == 0
        return MoeCausalLMOutputWithPast(logits=self.lm_head(self.model(input_ids)))
