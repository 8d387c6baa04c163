"""Decode rules against hand-computed tables, and what the sampler does with EOS, edits, seeds and progress."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from language.tiny import EOS, MASK, VOCABULARY, drawn, texts, tiny_llama
from torch import Tensor

from diffcache import ConfigError, accelerate, generate, report
from diffcache.language.sampler.blocks import blocks_of, calls_of
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.sampler.decoding import Factor, Quota, Rule, Threshold
from diffcache.language.sampler.drawing import Drawing
from diffcache.language.sampler.noise import Noise
from diffcache.language.sampler.writer import quota

CONFIDENCE = torch.tensor([[0.95, 0.0, 0.4, 0.92, 0.6], [0.1, 0.3, 0.0, 0.0, 0.2]])
ONE = torch.ones(2, 1, dtype=torch.int64)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Quota(1), [[0], [1]]),
        (Quota(2), [[0], [1]]),
        (Threshold(0.9), [[0, 3], [1]]),
        (Threshold(0.5), [[0, 3, 4], [1]]),
        (Threshold(1.5), [[0], [1]]),
        # thresholds 1/2, 2/3, 3/4, 4/5 of factor 1: 0.92 reaches 2/3, 0.6 misses 3/4
        (Factor(1.0), [[0, 3], [1]]),
        (Factor(2.0), [[0, 3, 4], [1]]),
        (Factor(0.1), [[0], [1]]),
    ],
    ids=lambda value: str(value) if isinstance(value, Rule) else None,
)
def test_rules_commit_by_hand_computed_tables(rule: Rule, expected: list[list[int]]) -> None:
    commit = rule.commit(CONFIDENCE.logit(), ONE) & (CONFIDENCE > 0)
    assert [row.nonzero()[:, 0].tolist() for row in commit] == expected


def test_a_quota_spreads_evenly_and_asks_one_at_least() -> None:
    masked = torch.tensor([[1] * 7, [1, 1, 0, 0, 0, 0, 0]]).bool()
    assert quota(masked, torch.arange(4), 3).tolist() == [[3, 2, 2, 2], [1, 1, 1, 1]]


def test_ties_go_to_the_earlier_position() -> None:
    alike = torch.tensor([[0.5, 0.5, 0.5]])
    assert Quota(2).commit(alike, ONE[:1] * 2).tolist() == [[True, True, False]]
    assert Quota(1).commit(alike, ONE[:1]).tolist() == [[True, False, False]]


def test_a_draw_is_no_mask_and_its_odds_are_the_models() -> None:
    logits = torch.zeros(1, 1, 4)
    logits[..., 1] = 9.0
    logits[..., 3] = 1.0
    token, odds = drawn(logits.clone())
    assert token.item() == 3
    assert odds.sigmoid().item() == pytest.approx(torch.tensor([0.0, 0.0, 1.0]).softmax(0)[2].item())


def test_temperature_one_draws_from_the_models_distribution() -> None:
    logits = torch.tensor([0.1, 0.2, 0.7]).log().expand(1, 4000, 3)
    padded = torch.cat([logits, torch.zeros(1, 4000, 1)], dim=2)
    drawing = Drawing(torch.tensor([3]), torch.tensor([]).long(), temperature=1.0)
    calls, device = torch.zeros(1, 1, dtype=torch.int64), torch.device("cpu")
    tokens, _ = drawing(padded, Noise.of(0, 1, 0, device), calls, torch.arange(4000)[None])
    shares = torch.bincount(tokens[0], minlength=4) / 4000
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.2, 0.7, 0.0]), atol=0.03, rtol=0)


def test_every_call_of_a_threshold_run_writes_something() -> None:
    left: list[int] = []
    generate(
        tiny_llama(),
        texts(3, 6),
        gen_length=20,
        threshold=0.6,
        eos_early_stop=False,
        callback=lambda _, tokens: left.append(int((tokens == MASK).sum(1).max())),
    )
    assert left == sorted(set(left), reverse=True)
    assert left[-1] == 0


def writes_eos_at(position: int) -> torch.nn.Module:
    """A model that is most confident of an EOS at one position; all else is alike to it."""
    model = tiny_llama()
    plain = model.forward

    def forward(tokens: Tensor, **options: object) -> object:
        out = plain(tokens, **options)
        out.logits = torch.zeros_like(out.logits)
        out.logits[..., 10] = 1.0
        out.logits[:, position, EOS] = 9.0
        return out

    model.forward = forward
    return model


def test_nothing_is_written_behind_the_first_eos_and_tokens_are_counted_before_it() -> None:
    written = generate(writes_eos_at(9), texts(2, 5), gen_length=12)
    assert written.lengths.tolist() == [4, 4]
    assert (written.sequences[:, 9:] == EOS).all()
    assert not (written.sequences == MASK).any()
    assert written.calls == 5
    late = generate(writes_eos_at(9), texts(2, 5), gen_length=12, eos_early_stop=False)
    assert late.lengths.tolist() == [4, 4]
    assert late.calls == 12
    assert (late.sequences[:, 10:] != EOS).all()


@pytest.mark.parametrize(
    "method", ["dkv-decode", "elastic-cache", "fast-dllm-dual", "fast-dllm-prefix", "dllm-cache"]
)
def test_an_edited_token_is_computed_anew(method: str) -> None:
    """The prompt is changed by the callback after a few calls; every cache must take notice at the next one."""
    model, prompts = accelerate(tiny_llama(), method), texts(1, 6)
    dirty: list[int] = []

    def edit(call: int, tokens: Tensor) -> Tensor | None:
        dirty.append(int(report(model).row_layers_of[-1]))
        if call == 4:
            tokens[0, 2] = 7
            return tokens
        return None

    written = generate(model, prompts, gen_length=12, eos_early_stop=False, callback=edit)
    assert written.sequences[0, 2] == 7
    if method in ("fast-dllm-dual", "fast-dllm-prefix"):
        assert dirty[4] == dirty[3] + 3  # one row more in three layers


def test_a_token_may_be_taken_back_to_a_mask() -> None:
    def take_back(call: int, tokens: Tensor) -> Tensor | None:
        if call != 3:
            return None
        tokens[:, 6:] = MASK
        return tokens

    written = generate(accelerate(tiny_llama(), "dkv-decode"), texts(1, 6), gen_length=8, callback=take_back)
    assert written.calls == 3 + 8
    assert not (written.sequences == MASK).any()


@pytest.mark.parametrize(
    "method", [None, "none", "dkv-decode", "elastic-cache", "fast-dllm-dual", "block-causal"]
)
@pytest.mark.parametrize("rule", [{}, {"threshold": 0.5}], ids=["quota", "threshold"])
def test_a_token_may_be_taken_back_in_a_block_that_was_finished(
    method: str | None, rule: dict[str, float]
) -> None:
    finished = False

    def take_back(call: int, tokens: Tensor) -> Tensor | None:
        nonlocal finished
        if finished or (tokens[:, 10:14] == MASK).all():
            return None
        finished = True
        tokens[0, 7] = MASK
        return tokens

    model, options = tiny_llama(), {"gen_length": 12, "block_length": 4, "eos_early_stop": False}
    if method is not None:
        accelerate(model, method)
    written = generate(model, texts(2, 6), callback=take_back, **options, **rule)
    assert finished
    assert not (written.sequences == MASK).any()


def test_an_eos_may_be_taken_out_again() -> None:
    def go_on(call: int, tokens: Tensor) -> Tensor:
        return tokens.where(tokens != EOS, 7)

    written = generate(writes_eos_at(5), texts(2, 5), gen_length=12, callback=go_on)
    assert not (written.sequences == MASK).any()
    assert written.lengths.tolist() == [12, 12]


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (lambda tokens: tokens[:, 6:], r"torch\.int64 \[1, 8\]"),
        (lambda tokens: tokens.float(), r"torch\.float32 \[1, 14\]"),
        (lambda tokens: tokens.tolist(), "list"),
    ],
    ids=["answer alone", "numbers", "list"],
)
def test_a_callback_that_returns_no_tokens_is_told_so(edit: Callable[[Tensor], Any], found: str) -> None:
    with pytest.raises(ConfigError, match=f"the callback returned {found}: return all tokens"):
        generate(tiny_llama(), texts(1, 6), gen_length=8, callback=lambda _, tokens: edit(tokens))


def test_a_seed_repeats_and_another_does_not() -> None:
    model, prompts = accelerate(tiny_llama(), "dkv-decode"), texts(2, 6)

    def sample(seed: int) -> Tensor:
        return generate(model, prompts, gen_length=16, temperature=1.0, seed=seed).sequences

    assert torch.equal(sample(1), sample(1))
    assert not torch.equal(sample(1), sample(2))


@pytest.mark.parametrize("seed", [2**63 + 5, [2**64 - 1, 2**63]], ids=["one", "of each text"])
def test_a_seed_may_be_as_large_as_pytorchs(seed: Any) -> None:
    written, again = (
        generate(tiny_llama(), texts(2, 5), gen_length=8, temperature=1.0, seed=seed).sequences
        for _ in range(2)
    )
    assert torch.equal(written, again)
    other = generate(tiny_llama(), texts(2, 5), gen_length=8, temperature=1.0, seed=5).sequences
    assert not torch.equal(written, other)


def test_the_last_block_may_be_shorter_without_a_quota() -> None:
    written = generate(tiny_llama(), texts(2, 5), gen_length=11, block_length=4, threshold=0.9)
    assert written.sequences.shape == (2, 16)
    assert written.sequences.max() < VOCABULARY


@pytest.mark.parametrize(
    ("gen_length", "window", "steps", "sizes", "calls"),
    [
        (128, None, 128, [32] * 4, [32] * 4),
        (128, None, 64, [32] * 4, [16] * 4),
        (128, None, 10, [32] * 4, [2, 3, 2, 3]),
        (100, None, 100, [32, 32, 32, 4], [32, 32, 32, 4]),
        (100, None, 50, [32, 32, 32, 4], [16, 16, 16, 2]),
        (100, None, None, [32, 32, 32, 4], [32, 32, 32, 4]),
        (16, None, None, [16], [16]),
        (128, 16, None, [128], [128]),
        (100, 16, 25, [100], [25]),
    ],
    ids=str,
)
def test_blocks_are_of_32_unless_a_window_moves_and_share_the_steps(
    gen_length: int, window: int | None, steps: int | None, sizes: list[int], calls: list[int]
) -> None:
    canvas = Canvas.of_prompts(texts(1, 5), gen_length, MASK)
    canvas.window = window
    blocks = blocks_of(canvas, None)
    assert [len(block) for block in blocks] == sizes
    assert calls_of(blocks, steps) == calls


@pytest.mark.parametrize(
    ("sizes", "steps", "calls"),
    [
        ([1, 8], 2, [1, 1]),
        ([32, 1, 1], 3, [1, 1, 1]),
        ([1, 1, 30], 10, [1, 1, 8]),
        ([30, 1, 1], 10, [8, 1, 1]),
        ([1, 31, 1, 31], 16, [1, 7, 1, 7]),
    ],
    ids=str,
)
def test_steps_are_so_many_in_all_however_short_a_block_is(
    sizes: list[int], steps: int, calls: list[int]
) -> None:
    ends = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    blocks = [range(7 + start, 7 + stop) for start, stop in pairwise(ends)]
    assert calls_of(blocks, steps) == calls
    assert sum(calls) == steps


@pytest.mark.parametrize(
    "options",
    [{}, {"eps": 1e-3}, {"eps": 1e-3, "remasking": "origin", "seed": 0}],
    ids=["quota", "schedule", "chance"],
)
def test_without_eos_a_run_ends_with_its_last_mask_too(options: dict[str, Any]) -> None:
    """More steps than tokens cost no calls that have nothing to write."""
    both = [
        generate(
            tiny_llama(), texts(2, 9), gen_length=8, steps=64, eos_token_id=VOCABULARY, **options, **stop
        )
        for stop in ({}, {"eos_early_stop": False})
    ]
    assert both[0].calls == both[1].calls < 64
    assert torch.equal(both[0].sequences, both[1].sequences)


def test_a_block_that_a_callback_has_written_costs_one_call() -> None:
    def write_the_second(call: int, tokens: Tensor) -> Tensor:
        return tokens.index_fill(1, torch.arange(10, 14), 7)

    options = {"gen_length": 12, "block_length": 4, "eos_early_stop": False}
    written = generate(tiny_llama(), texts(1, 6), callback=write_the_second, **options)
    assert written.calls == 4 + 1 + 4


def test_a_hundred_tokens_are_four_blocks_and_cost_a_cache_what_blocks_cost() -> None:
    model, prompts = accelerate(tiny_llama(), "fast-dllm-dual"), texts(1, 6)
    written = generate(model, prompts, gen_length=100, eos_early_stop=False)
    assert written.sequences.shape == (1, 106)
    assert not (written.sequences == MASK).any()
    assert written.calls == 100
    assert report(model).full_calls == 4
    assert report(model).row_layers == 3 * (4 * 106 + 3 * 31 * 32 + 3 * 4)


@pytest.mark.parametrize("method", [None, "none", "fast-dllm-dual"])
def test_the_default_blocks_are_the_same_with_and_without_a_cache(method: str | None) -> None:
    model, prompts = tiny_llama(), texts(1, 6)
    if method is not None:
        accelerate(model, method)
    written = generate(model, prompts, gen_length=64).sequences
    assert torch.equal(written, generate(model, prompts, gen_length=64, block_length=32).sequences)
    assert not torch.equal(written, generate(model, prompts, gen_length=64, block_length=64).sequences)


def test_a_progress_bar_counts_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    generate(tiny_llama(), texts(2, 5), gen_length=6, eos_early_stop=False, progress=True)
    assert "12/12" in capsys.readouterr().err
