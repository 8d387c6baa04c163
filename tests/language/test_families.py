"""Families of models: Transformers' own classes, and checkpoints in the form of the published ones."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar

import pytest
import torch
import transformers
from language import references
from language.forms import FORMS, by_hand, write
from language.stale import cached_calls, largest_difference
from language.tiny import EOS, MASK, VOCABULARY, texts, tiny_llama
from torch import Tensor, nn

from diffcache import ConfigError, TargetError, accelerate, generate, load_language_model, report, restore
from diffcache.language.backbones.families import backbone_of
from diffcache.language.backbones.rotation import kernel_tables
from diffcache.language.recipes.dkv import DKVDecodeConfig
from diffcache.language.recipes.elastic import ElasticCacheConfig
from diffcache.language.recipes.none import NoneConfig
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.session import Session
from diffcache.language.verification import verify

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "is_causal": False,
    "initializer_range": 0.2,
    "mask_token_id": MASK,
    "eos_token_id": EOS,
    "bos_token_id": 3,
    "pad_token_id": 0,
}

NATIVE: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "Mistral": {"sliding_window": None},
    "Olmo2": {},
    "Phi3": {},
    "Cohere": {},
    "Gemma": {"head_dim": 8},
    "Gemma2": {"head_dim": 8, "sliding_window": 4096},
    "Glm4": {"head_dim": 8},
    "Granite": {},
    "Qwen3Moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}
"""Transformers' own classes, and what their configurations need besides `SHAPE`."""


def native(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SHAPE, **NATIVE[name], **options})
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


@cache
def folder(form: str) -> Path:
    return write(form, Path(mkdtemp()) / form)


def model_of(name: str) -> Any:
    """A tiny model: a class of Transformers, or a checkpoint of a form."""
    if name in NATIVE:
        return native(name)
    block = 8 if name == "llada2" else None  # 32 otherwise, as the published models
    return load_language_model(folder(name), trust_remote_code=True, block_attention=block)[0]


def padded(prompts: Tensor) -> Tensor:
    mask = torch.ones_like(prompts)
    mask[0, :8] = 0  # two blocks of four, one of eight
    return mask


IN_BLOCKS = ("llada2", "sdar", "fast-dllm-v2")


@pytest.mark.parametrize("mask", [None, padded], ids=["whole", "padded"])
@pytest.mark.parametrize("name", [*NATIVE, *FORMS])
def test_none_writes_what_the_plain_model_writes(name: str, mask: Any) -> None:
    model, prompts = model_of(name), texts(2, 13)
    given = None if mask is None else mask(prompts)
    options = {"gen_length": 16, "block_length": None if name in IN_BLOCKS else 8}
    plain = generate(model, prompts, given, **options)
    cached = generate(accelerate(model, "none"), prompts, given, **options)
    assert torch.equal(plain.sequences, cached.sequences)
    again = generate(restore(model), prompts, given, **options)
    assert torch.equal(plain.sequences, again.sequences)


@pytest.mark.parametrize("form", ["llada", "mmada", "llada-moe"])
@torch.no_grad()
def test_plain_sampling_is_lladas_on_the_model_that_its_own_file_builds(form: str) -> None:
    model, own, prompts = model_of(form), by_hand(folder(form)), texts(2, 7)
    expected = [
        references.llada(lambda tokens: own(tokens).logits[0], each[None], 16, 8, 16) for each in prompts
    ]
    written = generate(model, prompts, gen_length=16, block_length=8, steps=16, eos_early_stop=False)
    assert torch.equal(written.sequences, torch.cat(expected))


@pytest.mark.parametrize("mask", [None, padded], ids=["whole", "padded"])
@pytest.mark.parametrize("steps", [16, 5])
def test_plain_sampling_is_that_of_dreams_own_generate(steps: int, mask: Any) -> None:
    model, own, prompts = model_of("dream"), by_hand(folder("dream")), texts(1, 13, seed=2)
    own.generation_config = model.generation_config
    given = None if mask is None else mask(prompts)
    for each in (model, own):
        each.lm_head.weight.data[MASK] = 0  # its sampler may draw the mask
    expected = own.diffusion_generate(prompts, given, max_new_tokens=16, steps=steps)
    options = {"remasking": "maskgit_plus", "eps": 1e-3, "block_length": 16, "eos_early_stop": False}
    written = generate(model, prompts, given, gen_length=16, steps=steps, **options)
    assert torch.equal(written.sequences, expected)


@pytest.mark.parametrize(
    "method",
    ["dkv-decode", "dkv-prefill", "fast-dllm-dual", "fast-dllm-prefix", "elastic-cache", "dllm-cache"],
)
@pytest.mark.parametrize("name", ["Qwen3", "Olmo2", *FORMS])
def test_methods_write_on_every_family(name: str, method: str) -> None:
    in_layers, in_blocks = method in ("elastic-cache", "dllm-cache"), name in IN_BLOCKS
    model, prompts = model_of(name), texts(2, 13)
    if name == "Olmo2" and in_layers:
        with pytest.raises(TargetError, match="parts of Olmo2ForCausalLM are not known"):
            accelerate(model, method)
        return
    accelerate(model, method)
    options = {"gen_length": 16, "block_length": None if in_blocks else 8, "threshold": 0.9}
    if in_blocks and method == "elastic-cache":
        with pytest.raises(TargetError, match="attends in blocks: choose block-causal"):
            generate(model, prompts, padded(prompts), **options)
        return
    written = generate(model, prompts, padded(prompts), **options)
    assert not (written.sequences == MASK).any()
    assert report(model).compute_fraction < 1


SKIPPING = ["dkv-decode", "dkv-prefill", "fast-dllm-dual", "fast-dllm-prefix", "vicinity"]
"""Methods that skip rows, and nothing else."""


@pytest.mark.parametrize("mask", [None, padded], ids=["whole", "padded"])
@pytest.mark.parametrize("name", [*NATIVE, *FORMS])
def test_cached_calls_compute_what_the_own_forward_computes_on_stale_keys_and_values(
    name: str, mask: Any
) -> None:
    model, prompts, in_blocks = model_of(name), texts(2, 37), name in IN_BLOCKS
    given = None if mask is None else mask(prompts)
    options = {
        "gen_length": 16,
        "block_length": None if in_blocks else 8,
        "steps": 8,
        "eos_early_stop": False,
    }
    for method in [*SKIPPING, "block-causal"] if in_blocks else SKIPPING:
        calls = cached_calls(model, method, prompts, given, **options)
        assert min(int(call.computed.sum()) for call in calls) < calls[0].computed.numel()
        assert largest_difference(model, calls) < 1e-4, method


def test_a_call_that_computed_other_rows_than_it_says_is_noticed() -> None:
    model = model_of("Llama")
    calls = cached_calls(model, "fast-dllm-dual", texts(2, 13), None, gen_length=16, threshold=0.9)
    calls[2].computed = torch.ones_like(calls[2].computed)
    assert largest_difference(model, calls) > 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["Llama", "Qwen3", *FORMS])
def test_the_kernel_rotates_as_every_family_does(name: str, dtype: torch.dtype) -> None:
    net = backbone_of(model_of(name).to(dtype)).parts()
    assert kernel_tables(net, net.rotary(9, torch.device("cpu"))) is not None


class Neighbours(nn.Module):
    """Rotates channels 2 i and 2 i + 1, as the kernel does not."""

    def __init__(self, tables: nn.Module) -> None:
        super().__init__()
        self.get_rotary_embedding = tables.get_rotary_embedding

    def apply_rotary_pos_emb(self, sin: Tensor, cos: Tensor, t: Tensor) -> Tensor:
        turned = torch.stack([-t[..., 1::2], t[..., ::2]], dim=-1).flatten(-2)
        return t * cos + turned * sin

    def forward(self, q: Tensor, k: Tensor) -> Any:
        sin, cos = self.get_rotary_embedding(k.shape[-2], q.device)
        return self.apply_rotary_pos_emb(sin, cos, q), self.apply_rotary_pos_emb(sin, cos, k)


def test_a_model_with_a_rotation_of_its_own_keeps_it() -> None:
    model, prompts = model_of("llada"), texts(2, 7)
    for block in model.model.transformer["blocks"]:
        block.rotary_emb = Neighbours(block.rotary_emb)
    net = backbone_of(model).parts()
    assert kernel_tables(net, net.rotary(9, torch.device("cpu"))) is None
    plain = generate(model, prompts, gen_length=16, block_length=8)
    cached = generate(accelerate(model, "none"), prompts, gen_length=16, block_length=8)
    assert torch.equal(plain.sequences, cached.sequences)


def test_dream_is_asked_one_row_earlier() -> None:
    """Its row i predicts token i + 1, also across a block's border: there the row before the block is computed too."""
    model, prompts = accelerate(model_of("dream"), "fast-dllm-dual"), texts(1, 7)
    generate(model, prompts, gen_length=16, block_length=8, eos_early_stop=False)
    per_call = [rows // 3 for rows in report(model).row_layers_of]
    assert per_call == [23, *[9] * 7, 23, *[9] * 7]


@dataclass(frozen=True, kw_only=True)
class MasksConfig(DKVDecodeConfig):
    """A method whose rows are a tensor of the canvas's own."""

    name: ClassVar[str] = "masks"

    def rows(self, canvas: Canvas) -> Tensor:
        return canvas.masked


@torch.no_grad()
def test_dreams_earlier_rows_are_added_beside_the_canvas() -> None:
    canvas = Canvas.of_prompts(texts(1, 7), 8, MASK)
    session = Session(backbone_of(model_of("dream")), MasksConfig(), torch.ones_like(canvas.tokens).bool())
    session.logits(canvas)
    canvas.advance()
    session.logits(canvas)
    assert session.report.row_layers_of[1] == 3 * 9  # eight masks, and the row before the first
    assert canvas.masked.sum() == 8


@pytest.mark.parametrize("method", [None, "fast-dllm-dual"])
def test_dream_needs_a_token_to_begin_with(method: str | None) -> None:
    model = model_of("dream")
    if method is not None:
        accelerate(model, method)
    with pytest.raises(ConfigError, match="predicts each token from the one before it"):
        generate(model, texts(1, 0), gen_length=8)
    generate(model, texts(1, 1), gen_length=8)


def test_any_model_may_predict_the_next_token() -> None:
    model, prompts = tiny_llama(token_shift=1), texts(1, 7)
    plain = generate(model, prompts, gen_length=8, eos_early_stop=False)
    assert torch.equal(
        plain.sequences,
        generate(accelerate(model, "none"), prompts, gen_length=8, eos_early_stop=False).sequences,
    )
    assert not torch.equal(
        plain.sequences, generate(tiny_llama(), prompts, gen_length=8, eos_early_stop=False).sequences
    )


def everything_as_it_was(model: Any) -> list[Any]:
    """What an attachment could leave on a model."""
    return [
        type(model),
        sorted(vars(model)),
        sorted(vars(model.config)),
        model._forward_pre_hooks,
        model._forward_hooks,
    ]


@pytest.mark.parametrize("method", ["block-causal", "fast-dllm-dual", "dllm-cache"])
@pytest.mark.parametrize("name", ["Llama", *FORMS])
def test_a_model_is_as_it_was_after_restore(name: str, method: str) -> None:
    model = model_of(name)
    before, tokens = everything_as_it_was(model), texts(1, 24)
    with torch.no_grad():
        logits = backbone_of(model).call(tokens, None, None)
        generate(accelerate(model, method), tokens, gen_length=8)
        assert torch.equal(backbone_of(restore(model)).call(tokens, None, None), logits)
    assert everything_as_it_was(model) == before


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: native("Mistral", sliding_window=16), "attends only 16 tokens around each"),
        (
            lambda: native("Qwen2", sliding_window=16, use_sliding_window=True, max_window_layers=0),
            "attends only 16 tokens",
        ),
        (lambda: native("Gemma2", sliding_window=20), "attends only 20 tokens"),
    ],
    ids=["Mistral", "Qwen2", "Gemma2"],
)
def test_a_window_that_is_shorter_than_the_text_is_refused(make: Any, sentence: str) -> None:
    model = make()
    before = everything_as_it_was(model)
    with pytest.raises(TargetError, match=sentence):
        accelerate(model, "fast-dllm-dual")
    assert everything_as_it_was(model) == before


def test_a_window_that_the_text_outgrows_is_refused_when_it_does() -> None:
    model = accelerate(native("Gemma2", sliding_window=120), "fast-dllm-dual")
    generate(model, texts(1, 60), gen_length=60)
    with pytest.raises(TargetError, match="attends only 120 tokens around each"):
        generate(model, texts(1, 64), gen_length=64)


class Strange(transformers.LlamaForCausalLM):
    """Masks attention in a way of its own where it is not called through a cache."""

    def own(self, tokens: Tensor, mask: Any) -> Any:
        raise NotImplementedError

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        logits_to_keep: Any = 0,
        use_cache: Any = None,
    ) -> Any:
        mask = attention_mask if past_key_values is not None else self.own(input_ids, attention_mask)
        return super().forward(
            input_ids,
            mask,
            position_ids,
            past_key_values=past_key_values,
            logits_to_keep=logits_to_keep,
            use_cache=use_cache,
        )


class InBlocks(Strange):
    """Attends in blocks of 32, and does not say so."""

    def own(self, tokens: Tensor, mask: Any) -> Tensor:
        order = torch.arange(tokens.shape[1]) // 32
        return (order[:, None] >= order)[None, None].expand(len(tokens), -1, -1, -1)


class WithoutPadding(Strange):
    """Attends padding."""

    def own(self, tokens: Tensor, mask: Any) -> None:
        return None


@pytest.mark.parametrize("kind", [InBlocks, WithoutPadding])
def test_a_mask_that_the_cache_does_not_have_is_refused(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama()
    monkeypatch.setattr(kind, "__module__", "transformers.models.strange")  # as one of Transformers' own
    model.__class__ = kind
    before = everything_as_it_was(model)
    with pytest.raises(TargetError, match="masks attention in a way that its cache does not have"):
        accelerate(model, "fast-dllm-dual")
    assert everything_as_it_was(model) == before


def test_a_mask_that_attention_does_not_take_is_refused() -> None:
    model = tiny_llama()
    model.config._attn_implementation_internal = "flex_attention"
    net = backbone_of(model)
    with pytest.raises(TargetError, match='load the model with attn_implementation="sdpa"'):
        net.as_mask(torch.ones(1, 1, 4, 4, dtype=torch.bool))  # type: ignore[attr-defined]


def test_dropout_is_no_part_that_a_backbone_lacks() -> None:
    with pytest.raises(TargetError, match=r"call model\.eval\(\) first"):
        verify(tiny_llama(attention_dropout=0.5).train(), NoneConfig())


def test_a_causal_model_is_refused() -> None:
    with pytest.raises(TargetError, match="is causal"):
        accelerate(tiny_llama(is_causal=True))


def test_a_model_that_computes_more_than_its_parts_is_refused() -> None:
    model = tiny_llama()
    model.model.layers[1].register_forward_hook(lambda layer, args, out: out * 1.1)
    with pytest.raises(TargetError, match="computes more than its LlamaLike parts"):
        verify(model, ElasticCacheConfig())
    verify(model, NoneConfig())  # its own forward knows


def test_a_model_of_no_known_family_is_refused() -> None:
    class Unknown(nn.Module):
        config = tiny_llama().config

    with pytest.raises(TargetError, match="no language model of a known family"):
        accelerate(Unknown(), "dkv-decode")


def test_the_table_of_models_has_them_all_and_none_that_is_wrong() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "measured" / "language.md").read_text()
    table = page.split("<!-- models: begin -->")[1].split("<!-- models: end -->")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| ")][1:]
    named = [name for row in rows for name in row[0].split(";")]
    names = {name.split(" (")[0].strip().removesuffix("ForCausalLM") for name in named}
    assert names == {*NATIVE, *FORMS}, "run scripts/tables/language_models.py"
    assert "NO" not in table
