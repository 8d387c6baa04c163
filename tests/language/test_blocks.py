"""Models that attend in blocks: tokens, cached or not, are those of the model's own sampler, whatever the prompt's length."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from language.forms import EOS, MASK, write
from language.tiny import texts, tiny_llama
from torch import Tensor

from diffcache import ConfigError, accelerate, generate, load_language_model, report, restore

BLOCK, WRITTEN = 8, 20
LENGTHS = [1, 5, BLOCK, 11, 2 * BLOCK, 21]
"""Of prompts: below one block, one, between, two, and more."""


@cache
def folder(form: str) -> Path:
    return write(form, Path(mkdtemp()) / form)


def load(form: str, **options: Any) -> Any:
    model, _ = load_language_model(folder(form), trust_remote_code=True, **options)
    model.lm_head.weight.data[MASK] = (
        0  # a trained model never predicts the mask, and the others' samplers may draw it
    )
    return model


def llada2() -> Any:
    return load("llada2", block_attention=BLOCK)


def sdar() -> Any:
    return load("sdar")


def own_of_llada2(model: Any, prompt: Tensor, threshold: float, least: int) -> Tensor:
    """The answer by its own `generate`, up to the first EOS."""
    steps = BLOCK // least
    options = {"gen_length": WRITTEN, "threshold": threshold, "mask_id": MASK, "eos_id": EOS}
    return model.generate(prompt, block_length=BLOCK, steps=steps, **options)[0]


@torch.no_grad()
def own_of_sdar(model: Any, prompt: Tensor, threshold: float, least: int) -> Tensor:
    """The answer as its authors' script writes it ("low_confidence_dynamic", temperature 0), without their cache."""
    size, given = model.config.block_size, prompt.shape[1]
    blocks = -(-(given + WRITTEN) // size)
    order = torch.arange(blocks).repeat_interleave(size)
    x = torch.full((1, blocks * size), MASK)
    x[:, :given] = prompt
    for block in range(given // size, blocks):
        now = x[:, : (block + 1) * size]
        here = order[: now.shape[1]]
        while bool((now[:, -size:] == MASK).any()):
            logits = model(now, attention_mask=(here[:, None] >= here)[None, None]).logits
            sure, guess = logits[:, -size:].softmax(-1).max(-1)
            open_ = now[:, -size:] == MASK
            sure = torch.where(open_, sure, -torch.inf)
            chosen = sure > threshold
            if int(chosen.sum()) < least:
                chosen = torch.zeros_like(open_)
                chosen[0, sure[0].topk(min(least, int(open_.sum()))).indices] = True
            now[:, -size:][chosen] = guess[chosen]
        if bool((now[0, given:] == EOS).any()):
            break
    return _up_to_eos(x[0, given : given + WRITTEN])


def _up_to_eos(answer: Tensor) -> Tensor:
    found = (answer == EOS).nonzero()
    return answer[: int(found[0]) + 1] if len(found) else answer


def ours(model: Any, prompt: Tensor, threshold: float, least: int) -> Tensor:
    options = {"gen_length": WRITTEN, "threshold": threshold, "min_tokens": least, "eos_early_stop": "block"}
    return _up_to_eos(generate(model, prompt, **options).sequences[0, prompt.shape[1] :])


FAMILIES = {"llada2": (llada2, own_of_llada2), "sdar": (sdar, own_of_sdar)}


@pytest.mark.parametrize(
    ("threshold", "least"), [(0.95, 1), (0.3, 1), (1.5, 2)], ids=["sure", "often", "quota"]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_the_models_own_sampler(family: str, threshold: float, least: int) -> None:
    make, own = FAMILIES[family]
    model = make()
    for length in LENGTHS:
        prompt = texts(1, length, seed=length)
        expected = own(model, prompt, threshold, least)
        assert torch.equal(ours(model, prompt, threshold, least), expected), "plain"
        for method in (None, "block-causal", "none"):
            accelerate(model, method)
            assert torch.equal(ours(model, prompt, threshold, least), expected), method
            restore(model)


def test_the_default_of_such_models_is_block_causal() -> None:
    model, prompt = accelerate(llada2()), texts(1, 11)
    generate(model, prompt, gen_length=13)
    told = report(model)
    assert told.method == "block-causal"
    # the prompt's block and the one that it ends in; then each block with the one before it, and each alone
    rows = [each // 3 for each in told.row_layers_of]
    assert rows == [16, 8, 8, 8, 8, 16, *[8] * 7]


def test_prompts_of_one_length_are_written_together_as_alone() -> None:
    model, prompts = accelerate(llada2()), texts(3, 13)
    together = generate(model, prompts, gen_length=WRITTEN).sequences
    alone = [generate(model, each[None], gen_length=WRITTEN).sequences for each in prompts]
    assert torch.equal(together, torch.cat(alone))


def padded(size: int) -> tuple[Tensor, Tensor]:
    prompts = texts(2, 21)
    mask = torch.ones_like(prompts)
    mask[0, :size] = 0
    return prompts, mask


@pytest.mark.parametrize("method", ["plain", "block-causal", "fast-dllm-dual"])
def test_padding_that_shifts_the_blocks_is_refused(method: str) -> None:
    model = llada2() if method == "plain" else accelerate(llada2(), method)
    with pytest.raises(ConfigError, match="attends in blocks of 8 tokens, counted from a text's first token"):
        generate(model, *padded(5), gen_length=WRITTEN)


@pytest.mark.parametrize("method", ["plain", "block-causal"])
def test_padding_of_whole_blocks_changes_nothing(method: str) -> None:
    model = llada2() if method == "plain" else accelerate(llada2(), method)
    prompts, mask = padded(16)
    both = generate(model, prompts, mask, gen_length=WRITTEN).sequences
    alone = generate(model, prompts[:1, 16:], gen_length=WRITTEN).sequences
    assert torch.equal(both[0, 16:], alone[0])


def test_one_of_transformers_own_classes_may_attend_in_blocks() -> None:
    model, prompt = tiny_llama(block_attention=4), texts(1, 6)
    plain = generate(model, prompt, gen_length=WRITTEN).sequences
    cached = generate(accelerate(model), prompt, gen_length=WRITTEN).sequences
    assert report(model).method == "block-causal"
    assert torch.equal(plain, cached)
    assert not torch.equal(
        plain, generate(tiny_llama(), prompt, gen_length=WRITTEN, block_length=4).sequences
    )
