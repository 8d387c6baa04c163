"""A model in the form of Dream's: Qwen2's names, a rotary module in each layer too, logits for the next token."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import MaskedLMOutput
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.modeling_utils import PreTrainedModel

from .configuration_dream import DreamConfig
from .generation_utils import DreamGenerationConfig, DreamGenerationMixin


class DreamRMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        exact = x.float()
        normed = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * normed.to(x.dtype)


class DreamRotaryEmbedding(nn.Module):
    def __init__(self, config: DreamConfig, device: Any = None) -> None:
        super().__init__()
        self.rope_kwargs: dict[str, Any] = {}
        scaling = config.rope_scaling
        self.rope_type = (scaling.get("rope_type") or scaling.get("type")) if scaling else "default"
        self.config = config
        self.rope_init_fn = ROPE_INIT_FUNCTIONS[self.rope_type]
        inv_freq, self.attention_scaling = self.rope_init_fn(config, device, **self.rope_kwargs)
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.original_inv_freq = self.inv_freq

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None].float() * self.inv_freq.float()
        both = torch.cat([angles, angles], dim=-1)
        cos, sin = both.cos() * self.attention_scaling, both.sin() * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


def rotate_half(x: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat([-right, left], dim=-1)


def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


class DreamAttention(nn.Module):
    def __init__(self, config: DreamConfig) -> None:
        super().__init__()
        self.head_dim = config.hidden_size // config.num_attention_heads
        kv = config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=True)
        self.k_proj = nn.Linear(config.hidden_size, kv, bias=True)
        self.v_proj = nn.Linear(config.hidden_size, kv, bias=True)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.rotary_emb = DreamRotaryEmbedding(config)

    def forward(self, x: Tensor, mask: Any, positions: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, *positions)
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        mask = mask if isinstance(mask, Tensor) else None
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=False)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class DreamMLP(nn.Module):
    def __init__(self, config: DreamConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class DreamDecoderLayer(nn.Module):
    def __init__(self, config: DreamConfig) -> None:
        super().__init__()
        self.self_attn = DreamAttention(config)
        self.mlp = DreamMLP(config)
        self.input_layernorm = DreamRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = DreamRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, mask: Any, positions: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), mask, positions)
        return x + self.mlp(self.post_attention_layernorm(x))


class DreamPreTrainedModel(PreTrainedModel):
    config_class = DreamConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_cache_class = True

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=self.config.initializer_range)

    @classmethod
    def from_pretrained(cls, path: str, *args: Any, **kwargs: Any) -> Any:
        model = super().from_pretrained(path, *args, **kwargs)
        model.generation_config = DreamGenerationConfig.from_pretrained(path)
        return model


class DreamBaseModel(DreamPreTrainedModel):
    def __init__(self, config: DreamConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(DreamDecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = DreamRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = DreamRotaryEmbedding(config)
        self.post_init()

    def forward(self, input_ids: Tensor, mask: Any, position_ids: Tensor | None) -> Tensor:
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        x = self.embed_tokens(input_ids)
        positions = self.rotary_emb(x, position_ids)
        for layer in self.layers:
            x = layer(x, mask, positions)
        return self.norm(x)


class DreamModel(DreamGenerationMixin, DreamPreTrainedModel):
    _tied_weights_keys = ["lm_head.weight"]  # noqa: RUF012 (as transformers 4 had it)

    def __init__(self, config: DreamConfig) -> None:
        super().__init__(config)
        self.model = DreamBaseModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        num_logits_to_keep: int = 0,
    ) -> Any:
        x = self.model(input_ids, attention_mask, position_ids)
        return MaskedLMOutput(logits=self.lm_head(x[:, -num_logits_to_keep:]))
