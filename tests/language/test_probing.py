"""Which token a row predicts, seen from texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from language.tiny import MASK, texts, tiny_llama

from diffcache import load_language_model
from diffcache.evals.language import benchmark, staleness, tally, wordchain
from diffcache.language import probing
from diffcache.language.probing import token_shift_of


@contextmanager
def shifted(model: Any) -> Iterator[Any]:
    """Row i of the model gives what row i + 1 gave."""

    def shift(module: Any, given: Any, output: Any) -> Any:
        output.logits = output.logits.roll(-1, dims=1)
        return output

    hook = model.register_forward_hook(shift)
    try:
        yield model
    finally:
        hook.remove()


def tallies(seed: int) -> tuple[Any, torch.Tensor, int]:
    return staleness.load(), tally.prompts(1, 8, seed), tally.MASK


def words(seed: int) -> tuple[Any, torch.Tensor, int]:
    model = benchmark.load()
    return model, wordchain.prompts(1, 20, seed), model.config.mask_token_id


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("testbed", [tallies, words])
def test_the_testbeds_tell_both_ways(testbed: Any, seed: int) -> None:
    model, tokens, mask = testbed(seed)
    assert token_shift_of(model, tokens, mask) == 0
    with shifted(model):
        assert token_shift_of(model, tokens, mask) == 1


def test_random_weights_and_short_texts_do_not_tell() -> None:
    for seed in range(8):
        assert token_shift_of(tiny_llama(seed), texts(1, 140, seed), MASK) is None
    model, tokens, mask = tallies(0)
    assert token_shift_of(model, tokens[:, :50], mask) is None


@pytest.mark.parametrize(("seen", "given", "expected"), [(1, None, 1), (None, None, None), (1, 0, 0)])
def test_what_a_text_shows_is_set_unless_it_is_given(
    seen: int | None, given: int | None, expected: int | None,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(probing, "token_shift_of", lambda *args: seen)
    model, _ = load_language_model(benchmark.FOLDER, token_shift=given)
    assert getattr(model.config, "token_shift", None) == expected
    assert ("token_shift=1 is set" in caplog.text) == (expected == 1)


def test_a_text_of_another_kind_changes_nothing() -> None:
    model, _ = load_language_model(benchmark.FOLDER)
    assert getattr(model.config, "token_shift", None) is None
