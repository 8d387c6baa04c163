"""Minimal modules with the attribute names of LLaDA's, LLaDA2's and Dream's published code, and none of that code.

They stand in for modules that live on the hub only. A backbone that works on them finds the right parts under the right
names; that it works on a published checkpoint is not shown by it.
"""

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, KV_HEADS, VOCABULARY = 32, 4, 2, 40
SIZE = WIDTH // HEADS


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """[b, H, n, D] over [b, K, S, D]; returns [b, n, H * D]."""
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


def tables(length: int, size: int) -> tuple[Tensor, Tensor]:
    angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, size, 2) / size)
    both = torch.cat([angles, angles], dim=-1)
    return both.cos(), both.sin()


def rotate_half(t: Tensor) -> Tensor:
    left, right = t.chunk(2, dim=-1)
    return torch.cat([-right, left], dim=-1)


def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """As in LLaDA2 and Dream: tables [b, n, size]; where they are narrower than the heads, the rest stays."""
    cos, sin = cos[:, None], sin[:, None]
    size = cos.shape[-1]

    def turn(t: Tensor) -> Tensor:
        turned, rest = t[..., :size], t[..., size:]
        return torch.cat([turned * cos + rotate_half(turned) * sin, rest], dim=-1)

    return turn(q), turn(k)


class Rotation(nn.Module):
    """`rotary_emb` of LLaDA2 and Dream."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, like: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = tables(int(position_ids.max()) + 1, self.size)
        return cos[position_ids].to(like.dtype), sin[position_ids].to(like.dtype)


# -- LLaDA ----------------------------------------------------------------------------------------------------------


class LLaDARotation(nn.Module):
    def get_rotary_embedding(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        cos, sin = tables(length, SIZE)
        return sin[None, None].to(device), cos[None, None].to(device)

    def apply_rotary_pos_emb(self, sin: Tensor, cos: Tensor, t: Tensor) -> Tensor:
        return t * cos + rotate_half(t) * sin


class LLaDABlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn_norm, self.ff_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q_norm = self.k_norm = None
        self.q_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj = nn.Linear(WIDTH, KV_HEADS * SIZE, bias=False)
        self.v_proj = nn.Linear(WIDTH, KV_HEADS * SIZE, bias=False)
        self.attn_out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.ff_proj, self.up_proj = nn.Linear(WIDTH, 48, bias=False), nn.Linear(WIDTH, 48, bias=False)
        self.ff_out = nn.Linear(48, WIDTH, bias=False)
        self.act = nn.SiLU()
        self.rotary_emb = LLaDARotation()

    def forward(self, x: Tensor) -> Tensor:
        normed = self.attn_norm(x)
        q, k, v = (
            projection(normed).unflatten(-1, (-1, SIZE)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        sin, cos = self.rotary_emb.get_rotary_embedding(x.shape[1], x.device)
        q, k = (self.rotary_emb.apply_rotary_pos_emb(sin, cos, t) for t in (q, k))
        x = x + self.attn_out(attend(q, k, v))
        normed = self.ff_norm(x)
        return x + self.ff_out(self.act(self.ff_proj(normed)) * self.up_proj(normed))


class LLaDACore(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(
            n_heads=HEADS,
            effective_n_kv_heads=KV_HEADS,
            d_model=WIDTH,
            input_emb_norm=False,
            rope_full_precision=True,
            scale_logits=False,
        )
        vars(self.config).update(options)
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, WIDTH),
                "blocks": nn.ModuleList(LLaDABlock() for _ in range(3)),
                "ln_f": nn.RMSNorm(WIDTH),
                "ff_out": nn.Linear(WIDTH, VOCABULARY, bias=False),
            }
        )


class LLaDAModelLM(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.model = LLaDACore(**options)
        self.config = SimpleNamespace(
            vocab_size=VOCABULARY, mask_token_id=1, eos_token_id=2, model_type="llada"
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        parts, config = self.model.transformer, self.model.config
        x = parts["wte"](input_ids)
        x = x * math.sqrt(WIDTH) if config.input_emb_norm else x
        for block in parts["blocks"]:
            x = block(x)
        logits = parts["ff_out"](parts["ln_f"](x))
        return SimpleNamespace(logits=logits / math.sqrt(WIDTH) if config.scale_logits else logits)


# -- Dream and LLaDA2 -----------------------------------------------------------------------------------------------


class GatedMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, 48, bias=False), nn.Linear(WIDTH, 48, bias=False)
        self.down_proj = nn.Linear(48, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class DreamAttention(nn.Module):
    head_dim = SIZE

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, WIDTH)
        self.k_proj, self.v_proj = nn.Linear(WIDTH, KV_HEADS * SIZE), nn.Linear(WIDTH, KV_HEADS * SIZE)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (
            projection(x).unflatten(-1, (-1, SIZE)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.o_proj(attend(*apply_rotary_pos_emb(q, k, cos, sin), v, mask))


class LLaDA2Attention(nn.Module):
    head_dim = SIZE

    def __init__(self) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * SIZE, bias=False)
        self.query_layernorm, self.key_layernorm = nn.RMSNorm(SIZE), nn.RMSNorm(SIZE)
        self.dense = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        joint = self.query_key_value(x).unflatten(-1, (-1, SIZE)).transpose(1, 2)
        q, k, v = joint.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        q, k = apply_rotary_pos_emb(self.query_layernorm(q), self.key_layernorm(k), cos, sin)
        return self.dense(attend(q, k, v, mask))


class RoutedMLP(GatedMLP):
    """An MLP that also returns where it routed, as LLaDA2's experts do."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x), None


class Layer(nn.Module):
    def __init__(self, attention_name: str, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.mlp = mlp
        self.attention_name = attention_name
        setattr(self, attention_name, attention)

    def forward(self, x: Tensor, *given: Any) -> Tensor:
        x = x + getattr(self, self.attention_name)(self.input_layernorm(x), *given)
        out = self.mlp(self.post_attention_layernorm(x))
        return x + (out[0] if isinstance(out, tuple) else out)


class Core(nn.Module):
    def __init__(self, embedding_name: str, layers: list[Layer], rotated: int) -> None:
        super().__init__()
        self.embedding_name = embedding_name
        setattr(self, embedding_name, nn.Embedding(VOCABULARY, WIDTH))
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(WIDTH)
        self.rotary_emb = Rotation(rotated)

    def forward(self, tokens: Tensor, mask: Tensor | None) -> Tensor:
        x = getattr(self, self.embedding_name)(tokens)
        cos, sin = self.rotary_emb(x, torch.arange(tokens.shape[1])[None])
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.norm(x)


class DreamModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = [Layer("self_attn", DreamAttention(), GatedMLP()) for _ in range(3)]
        self.model = Core("embed_tokens", layers, SIZE)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.config = SimpleNamespace(
            vocab_size=VOCABULARY,
            mask_token_id=1,
            eos_token_id=2,
            model_type="Dream",
            hidden_size=WIDTH,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
        )

    def forward(self, input_ids: Tensor, attention_mask: Any = "full") -> Any:
        mask = None if isinstance(attention_mask, str) else attention_mask
        return SimpleNamespace(logits=self.lm_head(self.model(input_ids, mask)))


class LLaDA2MoeModelLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        mlps = (GatedMLP(), RoutedMLP(), RoutedMLP())
        self.model = Core(
            "word_embeddings", [Layer("attention", LLaDA2Attention(), mlp) for mlp in mlps], SIZE // 2
        )
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.config = SimpleNamespace(
            vocab_size=VOCABULARY,
            mask_token_id=1,
            eos_token_id=2,
            model_type="llada2_moe",
            hidden_size=WIDTH,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            use_qk_norm=True,
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        mask = None if attention_mask is None else attention_mask[:, None, None].bool()
        return SimpleNamespace(logits=self.lm_head(self.model(input_ids, mask)))


def sharpened(model: nn.Module) -> nn.Module:
    """Larger weights, so that attention is not uniform."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            nn.init.normal_(parameter, std=0.2)
    return model.eval()
