"""Methods against what they must equal: the plain sampler, Transformers' own caches, and each other at their limits."""

from typing import Any

import pytest
import torch
from diffusers import BlockRefinementScheduler, LLaDA2Pipeline
from language.tiny import EOS, MASK, drawn, pipeline, texts, tiny_llama
from torch import Tensor
from transformers import DynamicCache, StaticCache

from diffcache import accelerate, generate, paused, report, restore
from diffcache.hooks.class_swap import is_swapped
from diffcache.language.backbones.families import backbone_of
from diffcache.language.recipes.elastic import ElasticCacheConfig
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.session import Session
from diffcache.language.walks.attention_drift import AttentionDriftWalk

RULES: dict[str, dict[str, Any]] = {
    "quota": {"block_length": 8},
    "threshold": {"block_length": 8, "threshold": 0.5},
    "factor": {"factor": 1.0},
    "window": {"window": 5},
    "sampled": {"block_length": 8, "temperature": 1.0, "seed": 3},
    "random": {"block_length": 8, "remasking": "random", "seed": 3},
}


def padded(tokens: Tensor) -> Tensor:
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0
    return mask


@pytest.mark.parametrize("mask", [None, padded], ids=["whole", "padded"])
@pytest.mark.parametrize("rule", RULES)
def test_none_writes_what_the_plain_sampler_writes(rule: str, mask: Any) -> None:
    model, prompts = tiny_llama(), texts(3, 9)
    given = None if mask is None else mask(prompts)
    plain = generate(model, prompts, given, gen_length=24, **RULES[rule])
    cached = generate(accelerate(model, "none"), prompts, given, gen_length=24, **RULES[rule])
    assert torch.equal(plain.sequences, cached.sequences)
    assert report(model).compute_fraction > 0.95


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("mask", [None, padded], ids=["whole", "padded"])
def test_a_full_call_has_the_models_own_logits_to_the_bit(
    attention: str, mask: Any, dtype: torch.dtype
) -> None:
    model, tokens = tiny_llama(attn_implementation=attention).to(dtype), texts(3, 20)
    given = torch.ones_like(tokens) if mask is None else mask(tokens)
    canvas = Canvas.of_prompts(tokens, 0, MASK)
    canvas.block = range(20)
    with torch.no_grad():
        walked, _ = Session(backbone_of(model), accelerated_config("none"), given.bool()).logits(canvas)
        own = model(tokens, attention_mask=given).logits
    real = given.bool()
    assert torch.equal(walked[real], own[real])


def accelerated_config(name: str) -> Any:
    from diffcache import methods

    return methods()[name]()


def render(pipe: LLaDA2Pipeline, **options: Any) -> Tensor:
    prompts = texts(2, 11)
    call = {
        "input_ids": prompts,
        "attention_mask": padded(prompts),
        "gen_length": 24,
        "num_inference_steps": 8,
        "mask_token_id": MASK,
        "eos_token_id": EOS,
        "output_type": "seq",
        "threshold": 0.6,
        "editing_threshold": 0.4,
        "max_post_steps": 3,
    }
    return pipe(**{**call, **options}).sequences


def test_none_writes_what_the_llada2_pipeline_writes_edits_included() -> None:
    pipe = pipeline()
    plain = render(pipe)
    accelerate(pipe, "none")
    assert torch.equal(render(pipe), plain)
    assert report(pipe).calls > 8
    accelerate(pipe, "fast-dllm-dual")
    with paused(pipe):
        assert torch.equal(render(pipe), plain)
    restore(pipe)
    assert type(pipe) is LLaDA2Pipeline
    assert torch.equal(render(pipe), plain)


def test_a_pipeline_caches_the_model_that_it_has_when_it_is_called() -> None:
    pipe = accelerate(pipeline(), "fast-dllm-dual")
    expected = render(pipe)
    pipe.model = torch.compile(pipe.model, backend="eager")
    assert torch.equal(render(pipe), expected)
    pipe.model = tiny_llama(seed=4)
    assert not torch.equal(render(pipe), expected)
    assert report(pipe).compute_fraction < 1
    assert not is_swapped(pipe.model)


@pytest.mark.parametrize("editing", [0.4, None], ids=["editing", "no editing"])
@pytest.mark.parametrize(
    "method",
    [
        None,
        "dkv-decode",
        "dkv-prefill",
        "elastic-cache",
        "fast-dllm-dual",
        "fast-dllm-prefix",
        "dllm-cache",
        "block-causal",
    ],
)
def test_methods_run_in_the_llada2_pipeline(method: str | None, editing: float | None) -> None:
    pipe = accelerate(pipeline(), method)
    # An untrained model never stops editing: the bound of post steps holds for all.
    written = render(pipe, editing_threshold=editing)
    assert not (written == MASK).any()
    assert report(pipe).compute_fraction < 1
    again = render(pipe, editing_threshold=editing)
    assert torch.equal(written, again)


def test_what_a_callback_asks_the_model_itself_is_none_of_the_runs() -> None:
    pipe = accelerate(pipeline(), "fast-dllm-dual")
    shares = LLaDA2Pipeline(pipe.model, BlockRefinementScheduler(block_length=8), tokenizer=None)
    shares.set_progress_bar_config(disable=True)
    expected, plain, own = render(pipe), render(shares), pipe.model(texts(1, 5)).logits
    seen: list[bool] = []

    def ask(_: LLaDA2Pipeline, call: int, *rest: Any) -> dict[str, Tensor]:
        if call == 3:
            with paused(pipe):
                seen.append(torch.equal(render(pipe), plain))
            seen.append(torch.equal(render(shares), plain))
            seen.append(torch.equal(pipe.model(texts(1, 5)).logits, own))
        return {}

    assert torch.equal(render(pipe, callback_on_step_end=ask), expected)
    assert seen == [True, True, True]


def edit_the_prompt(
    pipe: LLaDA2Pipeline, call: int, step: int, tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Of one text, behind the second call, and in the next block."""
    if call in (1, 8):
        tensors["block_x"][1, 2] = 4 + call
    return tensors


@pytest.mark.parametrize(
    ("method", "rows"),
    [("none", 16), ("fast-dllm-dual", 9), ("fast-dllm-prefix", 9), ("block-causal", 16), ("dllm-cache", 16)],
)
def test_what_a_callback_of_the_pipeline_edits_before_the_block_is_computed_anew(
    method: str, rows: int
) -> None:
    pipe = pipeline()
    options = {"callback_on_step_end": edit_the_prompt, "callback_on_step_end_tensor_inputs": ["block_x"]}
    plain = render(pipe, **options)
    written = render(accelerate(pipe, method), **options)
    assert report(pipe).row_layers_of[2] == 2 * 3 * rows  # texts, layers; 16 is all of them
    if method == "none":
        assert torch.equal(written, plain)


def by_hand(model: Any, prompts: Tensor, method: str) -> Tensor:
    """Fast-dLLM with Transformers' own caches: 24 tokens in blocks of 8, one for each call."""
    tokens = torch.cat([prompts, torch.full((len(prompts), 24), MASK)], dim=1)
    size = tokens.shape[1]
    for start in range(prompts.shape[1], size, 8):
        cache: Any
        if method == "fast-dllm-dual":
            cache, rows = StaticCache(config=model.config, max_cache_len=size), range(start, start + 8)
        else:
            cache, rows = DynamicCache(config=model.config), range(start, size)
        logits = model(tokens, past_key_values=cache, use_cache=True).logits[:, start : start + 8]
        while True:
            guess, sure = drawn(logits)
            masked = tokens[:, start : start + 8] == MASK
            best = torch.where(masked, sure, -torch.inf).argmax(dim=1, keepdim=True)
            tokens[:, start : start + 8].scatter_(1, best, guess.gather(1, best))
            if not (tokens[:, start : start + 8] == MASK).any():
                break
            if isinstance(cache, StaticCache):
                for layer in cache.layers:
                    layer.cumulative_length.fill_(start)
            else:
                cache.crop(start - cache.get_seq_length())
            logits = model(
                tokens[:, rows],
                position_ids=torch.arange(size)[rows][None],
                past_key_values=cache,
                use_cache=True,
                attention_mask=torch.ones(len(tokens), size),
            ).logits[:, :8]
    return tokens


@pytest.mark.parametrize("method", ["fast-dllm-dual", "fast-dllm-prefix"])
def test_block_caches_equal_transformers_own_caches(method: str) -> None:
    model, prompts = tiny_llama(seed=1), texts(2, 9)
    with torch.no_grad():
        expected = by_hand(model, prompts, method)
    written = generate(
        accelerate(model, method), prompts, gen_length=24, block_length=8, eos_early_stop=False
    )
    assert torch.equal(written.sequences, expected)


def test_dkv_with_interval_one_is_always_full() -> None:
    model, prompts = tiny_llama(), texts(2, 9)
    plain = generate(model, prompts, gen_length=16, block_length=8)
    accelerate(model, "dkv-decode", interval=1)
    assert torch.equal(generate(model, prompts, gen_length=16, block_length=8).sequences, plain.sequences)
    (note,) = report(model).notes
    assert note.startswith("nothing was reused: every call computed all positions")


@pytest.mark.parametrize(("threshold", "first"), [(1.01, 1), (-1.01, 3)], ids=["always", "never"])
@pytest.mark.parametrize("refresh", ["immediate", "delayed"])
@pytest.mark.parametrize("axis", ["heads", "keys"])
def test_elastic_refreshes_always_above_one_and_never_below_minus_one(
    threshold: float, first: int, refresh: str, axis: str
) -> None:
    config = ElasticCacheConfig(threshold=threshold, window=4, refresh=refresh, axis=axis)
    canvas = Canvas.of_prompts(texts(2, 9), 12, MASK)
    session = Session(backbone_of(tiny_llama()), config, torch.ones_like(canvas.tokens, dtype=torch.bool))
    canvas.window = session.config.commit_window
    seen = []
    with torch.no_grad():
        for at in range(9, 15):
            session.logits(canvas)
            assert isinstance(session.walk, AttentionDriftWalk)
            seen.append(session.walk.layer_from)
            canvas.rewrite(canvas.tokens.index_fill(1, torch.tensor(at), 7))
            canvas.advance()
    late = 3 if refresh == "delayed" else first  # nothing was measured before the second call
    assert seen == [0, late, first, first, first, first]


def test_dllm_cache_that_computes_all_rows_is_full() -> None:
    model, prompts = tiny_llama(), texts(2, 9)
    plain = generate(model, prompts, gen_length=16, block_length=8)
    accelerate(model, "dllm-cache", prompt_interval=1, interval=100, ratio=1.0)
    assert torch.equal(generate(model, prompts, gen_length=16, block_length=8).sequences, plain.sequences)
