"""The sampler writes, token by token, what plain references of the published samplers write, also where models are sure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from language import references
from language.tiny import EOS, MASK, texts, tiny_llama
from torch import Tensor

from diffcache import accelerate, generate
from diffcache.language.sampler.noise import Noise

PROMPTS, GEN = texts(2, 7), 24
SCALES = [1.0, 8.0, 20.0]


def scaled(scale: float, seed: int = 0) -> Any:
    """A tiny model whose logits are so many times as large: with 8 and 20 most probabilities round to 1."""
    model = tiny_llama(seed)
    with torch.no_grad():
        model.lm_head.weight *= scale
    return model


def logits_of(model: Any) -> references.Logits:
    def logits(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            return model(tokens).logits[0]

    return logits


def in_blocks(model: Any, size: int) -> references.Logits:
    """Of a model whose positions see nothing behind their block."""

    def logits(tokens: Tensor) -> Tensor:
        block = torch.arange(tokens.shape[1]) // size
        mask = torch.where(block[:, None] >= block[None], 0.0, torch.finfo(torch.float32).min)
        with torch.no_grad():
            return model(tokens, attention_mask=mask[None, None]).logits[0]

    return logits


def written(model: Any, prompts: Tensor = PROMPTS, **options: Any) -> Tensor:
    return generate(model, prompts, **{"gen_length": GEN, "eos_early_stop": False, **options}).sequences


def each(reference: Any, *args: Any, **options: Any) -> Tensor:
    return torch.cat([reference(prompt[None], *args, **options) for prompt in PROMPTS])


@pytest.mark.parametrize("cache", [None, "none"])
@pytest.mark.parametrize(("block", "steps"), [(8, 24), (8, 12), (24, 24), (24, 7), (10, 24)], ids=str)
@pytest.mark.parametrize("scale", SCALES)
def test_llada(scale: float, block: int, steps: int, cache: str | None) -> None:
    model = scaled(scale)
    logits = logits_of(model)
    expected = each(lambda prompt: references.llada(logits, prompt, GEN, block, steps))
    if cache:
        accelerate(model, cache)
    assert torch.equal(written(model, block_length=block, steps=steps), expected)


@pytest.mark.parametrize("cache", [None, "none"])
@pytest.mark.parametrize("scale", SCALES)
def test_llada_with_guidance(scale: float, cache: str | None) -> None:
    model = scaled(scale)
    logits = logits_of(model)
    expected = each(lambda prompt: references.llada(logits, prompt, GEN, 8, GEN, cfg_scale=1.5))
    assert not torch.equal(expected, each(lambda prompt: references.llada(logits, prompt, GEN, 8, GEN)))
    if cache:
        accelerate(model, cache)
    assert torch.equal(written(model, block_length=8, cfg_scale=1.5), expected)


@pytest.mark.parametrize("scale", SCALES)
def test_llada_with_gumbel_noise(scale: float) -> None:
    model, noise = scaled(scale), Noise.of([5, 6], 2, 7, torch.device("cpu"))

    def uniform(row: int) -> Any:
        def of_tokens(call: int, position: int) -> Tensor:
            alone = Noise(noise.seeds[row : row + 1], noise.prompt)
            return alone.of_tokens(torch.tensor([[call]]), torch.tensor([[position]]), 40)[0, 0]

        return of_tokens

    expected = [
        references.llada(
            logits_of(model), PROMPTS[i : i + 1], GEN, 8, 12, temperature=0.7, uniform=uniform(i)
        )
        for i in range(2)
    ]
    found = written(model, block_length=8, steps=12, temperature=0.7, seed=[5, 6])
    assert torch.equal(found, torch.cat(expected))


@pytest.mark.parametrize("scale", SCALES)
def test_lladas_rules_about_eos(scale: float) -> None:
    model = scaled(scale)
    with torch.no_grad():
        model.lm_head.weight[EOS] = model.lm_head.weight[15] * 1.05
        model.lm_head.weight[5] = model.lm_head.weight[10] * 1.05
    logits = logits_of(model)
    plain = each(lambda prompt: references.llada(logits, prompt, GEN, 8, GEN))
    never = each(lambda prompt: references.llada(logits, prompt, GEN, 8, GEN, logits_eos_inf=EOS))
    late = each(lambda prompt: references.llada(logits, prompt, GEN, 8, GEN, confidence_eos_eot_inf=(EOS, 5)))
    assert len({str(expected.tolist()) for expected in (plain, never, late)}) == 3
    assert torch.equal(written(model, block_length=8), plain)
    assert torch.equal(written(model, block_length=8, logits_eos_inf=True), never)
    found = written(model, block_length=8, confidence_eos_eot_inf=True, eot_token_id=5)
    assert torch.equal(found, late)


@pytest.mark.parametrize(
    "rule", [{"threshold": 0.5}, {"threshold": 0.9}, {"factor": 1.0}, {"factor": 0.3}], ids=str
)
@pytest.mark.parametrize("scale", SCALES)
def test_fast_dllm(scale: float, rule: dict[str, float]) -> None:
    model = scaled(scale)
    published = {"threshold": None, "factor": None, **rule}
    expected = each(lambda prompt: references.fast_dllm(logits_of(model), prompt, GEN, 8, **published))
    assert torch.equal(written(model, block_length=8, **rule), expected)


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.8}, {"top_k": 3}, {"top_p": 0.9, "top_k": 5}], ids=str)
@pytest.mark.parametrize("steps", [GEN, 10])
@pytest.mark.parametrize("alg", ["maskgit_plus", "topk_margin", "entropy"])
@pytest.mark.parametrize("scale", SCALES)
def test_dream(scale: float, alg: str, steps: int, filters: dict[str, Any]) -> None:
    model = scaled(scale)
    expected = each(lambda prompt: references.dream(logits_of(model), prompt, GEN, steps, alg, **filters))
    found = written(model, block_length=GEN, steps=steps, eps=1e-3, remasking=alg, **filters)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("steps", [GEN, 10])
def test_dreams_origin(steps: int) -> None:
    model, noise = scaled(1.0), Noise.of([5, 6], 2, 7, torch.device("cpu"))

    def uniform(row: int) -> Any:
        alone = Noise(noise.seeds[row : row + 1], noise.prompt)
        return lambda call, at: float(alone.of_positions(torch.tensor([[call]]), torch.tensor([[at]])))

    expected = [
        references.dream(logits_of(model), PROMPTS[i : i + 1], GEN, steps, "origin", uniform=uniform(i))
        for i in range(2)
    ]
    found = written(model, block_length=GEN, steps=steps, eps=1e-3, remasking="origin", seed=[5, 6])
    assert torch.equal(found, torch.cat(expected))


@pytest.mark.parametrize("rule", [(0.5, 0.3, 1), (0.9, 0.5, 2), (0.7, None, 1), (0.3, 0.1, 3)], ids=str)
@pytest.mark.parametrize("cache", [None, "none", "block-causal"])
@pytest.mark.parametrize("scale", SCALES)
def test_llada2(scale: float, cache: str | None, rule: tuple[float, float | None, int]) -> None:
    model = scaled(scale)
    model.config.block_attention = 8
    threshold, editing, least = rule
    expected = each(
        lambda prompt: references.llada2(
            in_blocks(model, 8), prompt, GEN, 8, threshold, editing, max_post_steps=4, num_to_transfer=least
        )
    )
    options = {"threshold": threshold, "editing_threshold": editing, "min_tokens": least, "max_post_steps": 4}
    if cache:
        accelerate(model, cache)
    assert torch.equal(written(model, **options), expected)


@pytest.mark.parametrize("length", [5, 8, 13, 16])
@pytest.mark.parametrize(("part", "threshold", "scale"), [(2, 0.9, 8.0), (4, 0.2, 1.0), (8, 0.5, 20.0)])
@pytest.mark.parametrize("cache", [None, "none", "block-causal"])
def test_fast_dllm_v2(scale: float, cache: str | None, part: int, threshold: float, length: int) -> None:
    model, prompts = scaled(scale), texts(2, length, seed=5)
    model.config.block_attention, model.config.token_shift = 8, 1
    expected = torch.cat(
        [
            references.fast_dllm_v2(in_blocks(model, 8), prompt[None], GEN, 8, part, threshold)
            for prompt in prompts
        ]
    )
    if cache:
        accelerate(model, cache)
    assert torch.equal(written(model, prompts, threshold=threshold, sub_block_length=part), expected)


def test_an_eos_ends_a_text_after_its_block_as_llada2_has_it() -> None:
    model = scaled(1.0)
    model.config.block_attention = 8
    with torch.no_grad():
        often = int(written(model, threshold=0.5)[:, 9:15].mode().values[0])
        model.lm_head.weight[EOS] = model.lm_head.weight[often] * 1.1
    found = generate(model, PROMPTS, gen_length=GEN, threshold=0.5, eos_early_stop="block")
    stops = 0
    for i, prompt in enumerate(PROMPTS):
        own = references.llada2(in_blocks(model, 8), prompt[None], GEN, 8, 0.5, None, eos=EOS)[0, 7:]
        length = int((own == EOS).int().argmax()) if (own == EOS).any() else GEN
        stops += length < GEN - 8
        assert found.lengths[i] == length
        assert torch.equal(found.sequences[i, 7 : 7 + length], own[:length])
        assert (found.sequences[i, 7 + length :] == EOS).all()
    assert stops


def test_no_reference_draws_the_mask() -> None:
    model = scaled(1.0)
    with torch.no_grad():
        model.lm_head.weight[MASK] = model.lm_head.weight[9] * 2
    assert not (written(model, block_length=8) == MASK).any()
