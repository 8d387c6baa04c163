"""A model in the form of LLaDA2's: joint projection, partial rotation, routed experts, attention in blocks, a sampler.

Without a mask of pairs it is causal. Its sampler passes one in which a block sees itself and what is before it.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_attn_mask_utils import _prepare_4d_causal_attention_mask_for_sdpa
from transformers.modeling_outputs import MoeCausalLMOutputWithPast
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update
from transformers.modeling_utils import PreTrainedModel
from transformers.pytorch_utils import ALL_LAYERNORM_LAYERS, is_torch_greater_or_equal_than_1_13
from transformers.utils.import_utils import is_torch_fx_available

from .configuration_llada2_moe import LLaDA2MoeConfig

if is_torch_fx_available():
    if not is_torch_greater_or_equal_than_1_13:
        import torch.fx

    _prepare_4d_causal_attention_mask_for_sdpa = torch.fx.wrap(_prepare_4d_causal_attention_mask_for_sdpa)


class LLaDA2MoeRMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        exact = x.float()
        normed = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * normed.to(x.dtype)


ALL_LAYERNORM_LAYERS.append(LLaDA2MoeRMSNorm)


class LLaDA2MoeRotaryEmbedding(nn.Module):
    def __init__(self, config: LLaDA2MoeConfig, device: Any = None) -> None:
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
    size = cos.shape[-1]

    def turn(t: Tensor) -> Tensor:
        turned, rest = t[..., :size], t[..., size:]
        return torch.cat([turned * cos + rotate_half(turned) * sin, rest], dim=-1)

    return turn(q), turn(k)


class LLaDA2MoeMLP(nn.Module):
    def __init__(self, config: LLaDA2MoeConfig, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class LLaDA2MoeGate(nn.Module):
    def __init__(self, config: LLaDA2MoeConfig) -> None:
        super().__init__()
        self.top_k, self.scaling = config.num_experts_per_tok, config.routed_scaling_factor
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.register_buffer("expert_bias", torch.zeros(config.num_experts))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = functional.linear(x.float(), self.weight.float())
        scores = logits.sigmoid()
        chosen = (scores + self.expert_bias).topk(self.top_k, dim=-1).indices
        weights = scores.gather(-1, chosen)
        return chosen, weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.scaling, logits


class LLaDA2MoeSparseMoeBlock(nn.Module):
    def __init__(self, config: LLaDA2MoeConfig) -> None:
        super().__init__()
        inner = config.moe_intermediate_size
        self.experts = nn.ModuleList(LLaDA2MoeMLP(config, inner) for _ in range(config.num_experts))
        self.gate = LLaDA2MoeGate(config)
        self.shared_experts = LLaDA2MoeMLP(config, inner * config.num_shared_experts)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        chosen, weights, logits = self.gate(x)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            out = out + (weights * (chosen == index)).sum(-1, keepdim=True).to(x.dtype) * expert(x)
        return out + self.shared_experts(x), (logits, chosen)


class LLaDA2MoeAttention(nn.Module):
    def __init__(self, config: LLaDA2MoeConfig) -> None:
        super().__init__()
        self.config = config
        self.num_heads, self.num_key_value_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim or config.hidden_size // self.num_heads
        joint = (self.num_heads + 2 * self.num_key_value_heads) * self.head_dim
        self.query_key_value = nn.Linear(config.hidden_size, joint, bias=config.use_qkv_bias)
        if config.use_qk_norm:
            self.query_layernorm = LLaDA2MoeRMSNorm(self.head_dim, config.rms_norm_eps)
            self.key_layernorm = LLaDA2MoeRMSNorm(self.head_dim, config.rms_norm_eps)
        self.dense = nn.Linear(self.num_heads * self.head_dim, config.hidden_size, bias=config.use_bias)

    def forward(self, x: Tensor, mask: Tensor | None, positions: tuple[Tensor, Tensor]) -> Tensor:
        sizes = [self.num_heads, self.num_key_value_heads, self.num_key_value_heads]
        joint = self.query_key_value(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q, k, v = joint.split(sizes, dim=1)
        if self.config.use_qk_norm:
            q, k = self.query_layernorm(q), self.key_layernorm(k)
        q, k = apply_rotary_pos_emb(q, k, *positions)
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=False)
        return self.dense(out.transpose(1, 2).flatten(2))


class LLaDA2MoeDecoderLayer(nn.Module):
    def __init__(self, config: LLaDA2MoeConfig, layer: int) -> None:
        super().__init__()
        routed = layer >= config.first_k_dense_replace
        self.attention = LLaDA2MoeAttention(config)
        self.mlp = (
            LLaDA2MoeSparseMoeBlock(config) if routed else LLaDA2MoeMLP(config, config.intermediate_size)
        )
        self.input_layernorm = LLaDA2MoeRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = LLaDA2MoeRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, mask: Tensor | None, positions: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.input_layernorm(x), mask, positions)
        out = self.mlp(self.post_attention_layernorm(x))
        return x + (out[0] if isinstance(out, tuple) else out)


class LLaDA2MoePreTrainedModel(PreTrainedModel):
    config_class = LLaDA2MoeConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=self.config.initializer_range)


class LLaDA2MoeModel(LLaDA2MoePreTrainedModel):
    def __init__(self, config: LLaDA2MoeConfig) -> None:
        super().__init__(config)
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(LLaDA2MoeDecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = LLaDA2MoeRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = LLaDA2MoeRotaryEmbedding(config)
        self.post_init()

    def forward(self, input_ids: Tensor, mask: Tensor | None, position_ids: Tensor | None) -> Tensor:
        x = self.word_embeddings(input_ids)
        if mask is None or mask.dim() != 4:
            mask = _prepare_4d_causal_attention_mask_for_sdpa(mask, tuple(input_ids.shape), x, 0)
            if mask is None:
                mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        if position_ids is None:
            position_ids = torch.arange(x.shape[1], device=x.device)[None]
        positions = self.rotary_emb(x, position_ids)
        for layer in self.layers:
            x = layer(x, mask if mask.dtype == torch.bool else mask.to(x.dtype), positions)
        return self.norm(x)


class LLaDA2MoeModelLM(LLaDA2MoePreTrainedModel):
    _tied_weights_keys = ["lm_head.weight"]  # noqa: RUF012 (as transformers 4 had it)

    def __init__(self, config: LLaDA2MoeConfig) -> None:
        super().__init__(config)
        self.model = LLaDA2MoeModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.word_embeddings

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        logits = self.lm_head(self.model(input_ids, attention_mask, position_ids)).float()
        return MoeCausalLMOutputWithPast(logits=logits)

    @torch.no_grad()
    def generate(
        self,
        inputs: Tensor,
        *,
        block_length: int,
        steps: int,
        gen_length: int,
        threshold: float,
        eos_id: int,
        mask_id: int,
    ) -> Tensor:
        """LLaDA2.0's sampler for one text at temperature 0; returns the answer, up to its first EOS."""
        given = inputs.shape[1]
        blocks = -(-(given + gen_length) // block_length)
        order = torch.arange(blocks).repeat_interleave(block_length)
        mask = (order[:, None] >= order).float().log()[None, None]
        x = torch.full((1, blocks * block_length), mask_id)
        x[:, :given] = inputs
        base, rest = divmod(block_length, steps)
        for block in range(given // block_length, blocks):
            end = (block + 1) * block_length
            now = x[:, :end]
            for step in range(steps):
                open_ = now[:, -block_length:] == mask_id
                if not bool(open_.any()):
                    break
                at = torch.arange(end)[None]
                logits = self(now, attention_mask=mask[:, :, :end, :end], position_ids=at).logits
                sure, guess = logits[:, -block_length:].softmax(-1).max(-1)
                sure = torch.where(open_, sure, -torch.inf)
                chosen, quota = sure > threshold, base + (step < rest)
                if int(chosen.sum()) < quota:
                    best = sure[0].topk(min(quota, int(open_.sum()))).indices
                    chosen = torch.zeros_like(open_)
                    chosen[0, best] = True
                now[:, -block_length:][chosen] = guess[chosen]
            if bool((x[0, given:end] == eos_id).any()):
                break
        answer = x[:, given : given + gen_length]
        found = (answer[0] == eos_id).nonzero()
        return answer[:, : int(found[0]) + 1] if len(found) else answer
