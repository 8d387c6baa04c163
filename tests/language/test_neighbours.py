"""What is written for a text does not depend on the texts beside it: their lengths, their randomness, their pace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from language.tiny import EOS, MASK, texts, tiny_llama
from torch import Tensor

from diffcache import accelerate, generate, stream
from diffcache.language.sampler.noise import Noise

GEN = 20
WAYS: dict[str, dict[str, Any]] = {
    "quota": {"block_length": 8},
    "threshold": {"block_length": 8, "threshold": 0.5},
    "window": {"window": 5, "threshold": 0.5},
    "sampled": {"block_length": 8, "temperature": 1.0, "threshold": 0.6},
    "random": {"block_length": 8, "remasking": "random", "temperature": 0.5},
    "origin": {"steps": 12, "eps": 1e-3, "remasking": "origin"},
    "softened": {"steps": 12, "remasking": "entropy", "alg_temp": 0.3},
    "edits": {"block_length": 8, "threshold": 0.5, "editing_threshold": 0.2, "max_post_steps": 3},
    "guided": {"block_length": 8, "cfg_scale": 1.0},
}


def batch_of(prompts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Padded on the left."""
    size = max(map(len, prompts))
    rows = [torch.cat([prompt.new_zeros(size - len(prompt)), prompt]) for prompt in prompts]
    mask = [torch.arange(size) >= size - len(prompt) for prompt in prompts]
    return torch.stack(rows), torch.stack(mask).long()


@pytest.mark.parametrize("method", [None, "default", "fast-dllm-dual", "dkv-decode"])
@pytest.mark.parametrize("way", WAYS)
def test_alone_and_among_others(way: str, method: str | None) -> None:
    model = tiny_llama().double()  # in float32 rounding depends on the padding
    if method:
        accelerate(model, None if method == "default" else method)
    prompts = [texts(1, size, seed=size)[0] for size in (4, 9, 6)]
    options = {"gen_length": GEN, **WAYS[way]}
    together = generate(model, *batch_of(prompts), seed=[11, 12, 13], **options)
    for i, prompt in enumerate(prompts):
        alone = generate(model, prompt[None], seed=[11 + i], **options)
        assert torch.equal(together.sequences[i, -GEN:], alone.sequences[0, -GEN:])


def test_one_seed_gives_each_text_randomness_of_its_own() -> None:
    same = texts(1, 5).repeat(2, 1)
    written = generate(
        tiny_llama(), same, gen_length=GEN, temperature=1.0, seed=3, eos_early_stop=False
    ).sequences
    assert not torch.equal(written[0], written[1])


def test_pytorchs_random_state_counts_without_a_seed() -> None:
    model = tiny_llama()

    def sample(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return generate(model, texts(1, 5), gen_length=GEN, temperature=1.0).sequences

    first, again, other = (sample(seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_noise_is_uniform_and_differs_between_calls_positions_tokens_and_texts() -> None:
    noise = Noise.of(0, 2, 3, torch.device("cpu"))
    first, later = (
        noise.of_tokens(torch.full((2, 1), call), torch.arange(3, 203)[None], 50) for call in (0, 1)
    )
    both = torch.stack([first, later]).flatten()
    assert len(both.unique()) == len(both)
    assert ((both > 0) & (both < 1)).all()
    shares = torch.histc(both, 20, 0, 1) / len(both)
    torch.testing.assert_close(shares, torch.full_like(shares, 0.05), atol=0.005, rtol=0)
    rows = torch.stack(
        [first[0].flatten(), later[0].flatten(), first[1].flatten(), first[0].flatten().roll(1)]
    )
    assert rows.corrcoef().triu(1).abs().max() < 0.05


@pytest.mark.parametrize("given", ["unpacked", "as it is"])
def test_what_a_tokenizer_returns_is_a_prompt(given: str) -> None:
    ids = texts(2, 6)
    encoded = {
        "input_ids": ids,
        "token_type_ids": torch.zeros_like(ids),
        "attention_mask": torch.ones_like(ids),
    }
    encoded["attention_mask"][0, :2] = 0
    model = tiny_llama()
    expected = generate(model, ids, encoded["attention_mask"], gen_length=8).sequences
    found = (
        generate(model, encoded, gen_length=8)
        if given == "as it is"
        else generate(model, **encoded, gen_length=8)
    )
    assert torch.equal(found.sequences, expected)


@pytest.mark.parametrize("method", [None, "dkv-decode"])
def test_a_stream_shows_every_call(method: str | None) -> None:
    model, prompts = tiny_llama(), texts(2, 6)
    if method:
        accelerate(model, method)
    steps = list(stream(model, prompts, gen_length=12, block_length=5, threshold=0.3, eos_early_stop=False))
    written = generate(model, prompts, gen_length=12, block_length=5, threshold=0.3, eos_early_stop=False)
    assert [step.call for step in steps] == list(range(1, written.calls + 1))
    assert torch.equal(steps[-1].sequences, written.sequences)
    assert torch.stack([step.written for step in steps]).sum(dim=0)[:, 6:].eq(1).all()
    before = torch.full_like(written.sequences, MASK)
    before[:, :6] = prompts
    for step in steps:
        assert torch.equal(before.where(~step.written, written.sequences), step.sequences)
        assert not step.sequences.is_inference()
        before = step.sequences


def test_a_stream_may_be_left_early() -> None:
    for step in stream(tiny_llama(), texts(1, 6), gen_length=12):
        if step.call == 3:
            break
    assert int((step.sequences == MASK).sum()) == 9


def test_a_callback_of_a_stream_edits() -> None:
    def edit(call: int, tokens: Tensor) -> Tensor | None:
        tokens[0, 0] = 7
        return tokens

    *_, last = stream(tiny_llama(), texts(1, 6), gen_length=4, callback=edit)
    assert last.sequences[0, 0] == 7
    assert EOS not in last.sequences[0, :6]
