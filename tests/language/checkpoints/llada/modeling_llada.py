"""A model in the form of LLaDA's: OLMo's names, no `post_init`, `tie_weights` without arguments, no attention mask."""

import math
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_llada import LLaDAConfig, ModelConfig


class RMSLayerNorm(nn.Module):
    def __init__(self, size: int, eps: float, device: Any = None) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size, device=device))

    def forward(self, x: Tensor) -> Tensor:
        exact = x.float()
        return self.weight * (exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class RotaryEmbedding(nn.Module):
    """Tables are computed on the device that is asked for, and remembered for all layers together."""

    def __init__(self, config: ModelConfig, cache: dict[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        self.__dict__["cache"] = cache
        self.get_rotary_embedding(config.max_sequence_length, torch.device("cpu"))

    def get_rotary_embedding(self, seq_len: int, device: torch.device) -> tuple[Tensor, Tensor]:
        kept = self.cache.get("sin")
        if kept is None or kept.shape[-2] < seq_len or kept.device != device:
            dim = self.config.d_model // self.config.n_heads
            steps = torch.arange(0, dim, 2, device=device, dtype=torch.float)
            inv_freq = 1.0 / (self.config.rope_theta ** (steps / dim))
            seq = torch.arange(seq_len, device=device, dtype=torch.float)
            both = torch.cat([seq[:, None] * inv_freq] * 2, dim=-1)
            self.cache["sin"], self.cache["cos"] = both.sin()[None, None], both.cos()[None, None]
        return self.cache["sin"][:, :, :seq_len], self.cache["cos"][:, :, :seq_len]

    def rotate_half(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        return torch.cat([-right, left], dim=-1)

    def apply_rotary_pos_emb(self, pos_sin: Tensor, pos_cos: Tensor, t: Tensor) -> Tensor:
        return (t * pos_cos + self.rotate_half(t) * pos_sin).to(t.dtype)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        exact = torch.float if self.config.rope_full_precision else q.dtype
        sin, cos = self.get_rotary_embedding(k.shape[-2], q.device)
        turned = (self.apply_rotary_pos_emb(sin.to(exact), cos.to(exact), t.to(exact)) for t in (q, k))
        return tuple(t.type_as(q) for t in turned)


class LLaDALlamaBlock(nn.Module):
    def __init__(self, config: ModelConfig, cache: dict[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        width, device = config.d_model, config.init_device
        self.head_dim = width // config.n_heads
        kv = config.effective_n_kv_heads * self.head_dim
        self.attn_norm = RMSLayerNorm(width, config.rms_norm_eps, device)
        self.ff_norm = RMSLayerNorm(width, config.rms_norm_eps, device)
        self.q_norm = self.k_norm = None
        self.q_proj = nn.Linear(width, width, bias=False, device=device)
        self.k_proj = nn.Linear(width, kv, bias=False, device=device)
        self.v_proj = nn.Linear(width, kv, bias=False, device=device)
        self.attn_out = nn.Linear(width, width, bias=False, device=device)
        self.ff_proj = nn.Linear(width, config.mlp_hidden_size, bias=False, device=device)
        self.up_proj = nn.Linear(width, config.mlp_hidden_size, bias=False, device=device)
        self.ff_out = nn.Linear(config.mlp_hidden_size, width, bias=False, device=device)
        self.act = nn.SiLU()
        self.rotary_emb = RotaryEmbedding(config, cache)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.attn_norm(x)
        q, k, v = (
            projection(normed).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = self.rotary_emb(q, k)
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=None, is_causal=False)
        x = x + self.attn_out(attended.transpose(1, 2).flatten(2))
        normed = self.ff_norm(x)
        return x + self.ff_out(self.act(self.ff_proj(normed)) * self.up_proj(normed))


class LLaDAModel(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        torch.backends.cuda.enable_flash_sdp(True)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        cache: dict[str, Tensor] = {}
        width, device = config.d_model, config.init_device
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.embedding_size or config.vocab_size, width, device=device),
                "emb_drop": nn.Dropout(0.0),
                "ln_f": RMSLayerNorm(width, config.rms_norm_eps, device),
                "blocks": nn.ModuleList(LLaDALlamaBlock(config, cache) for _ in range(config.n_layers)),
            }
        )
        if not config.weight_tying:
            head = nn.Linear(width, config.embedding_size or config.vocab_size, bias=False, device=device)
            self.transformer.update({"ff_out": head})

    def forward(self, input_ids: Tensor) -> Tensor:
        parts, width = self.transformer, self.config.d_model
        x = parts.wte(input_ids)
        x = parts.emb_drop(x * width**0.5 if self.config.input_emb_norm else x)
        for block in parts.blocks:
            x = block(x)
        x = parts.ln_f(x)
        if self.config.weight_tying:
            logits = functional.linear(x, parts.wte.weight, None)
        else:
            logits = parts.ff_out(x)
        return logits * (1 / math.sqrt(width)) if self.config.scale_logits else logits


class LLaDAModelLM(PreTrainedModel):
    config_class = LLaDAConfig
    base_model_prefix = "model"
    _no_split_modules = ("LLaDALlamaBlock",)

    def __init__(self, config: LLaDAConfig, model: Any = None, init_params: bool = False) -> None:
        super().__init__(config)
        own = ModelConfig(**{field.name: getattr(config, field.name) for field in fields(ModelConfig)})
        own.init_device = "cpu"
        self.model = model or LLaDAModel(own)

    def forward(
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        attention_mask: Tensor | None = None,
        attention_bias: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        use_cache = self.config.use_cache if use_cache is None else use_cache
        return_dict = self.config.use_return_dict if return_dict is None else return_dict
        logits = self.model(input_ids)
        return CausalLMOutputWithPast(logits=logits) if return_dict else (logits,)

    def can_generate(self) -> bool:
        return True

    def get_input_embeddings(self) -> nn.Module:
        return self.model.transformer.wte

    def get_output_embeddings(self) -> nn.Module:
        return self.model.transformer.wte if self.config.weight_tying else self.model.transformer.ff_out

    def tie_weights(self) -> None:
        if self.config.weight_tying:
            self.model.transformer.ff_out = self.model.transformer.wte
