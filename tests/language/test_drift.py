"""Elastic-Cache's bookkeeping: which tokens it tracks, which rows count, and what their attention is compared with."""

from typing import Any

import pytest
import torch
from language.tiny import MASK, stored_keys, texts, tiny_llama

from diffcache import accelerate, generate
from diffcache.language.backbones.families import backbone_of
from diffcache.language.cache import take
from diffcache.language.recipes.elastic import ElasticCacheConfig
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.session import Session
from diffcache.language.walks import attention_drift as drift
from diffcache.language.walks.attention_drift import WeightedRows, most_attended


@torch.no_grad()
def test_what_is_compared_is_the_cache_before_and_after_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[Any, ...]] = []
    compare = drift.attention_drift
    monkeypatch.setattr(drift, "attention_drift", lambda *args: compared.append(args) or compare(*args))
    canvas = Canvas.of_prompts(texts(2, 9), 12, MASK)
    session = Session(
        backbone_of(tiny_llama()),
        ElasticCacheConfig(threshold=-1.01, window=4),
        torch.ones_like(canvas.tokens, dtype=torch.bool),
    )
    canvas.window = session.config.commit_window
    session.logits(canvas)
    canvas.rewrite(canvas.tokens.index_fill(1, torch.tensor(9), 7))
    canvas.advance()
    wanted, cache = session.walk.wanted_rows, session.cache
    keys, asked = stored_keys(cache), cache.method_features["queries"].clone()
    session.logits(canvas)
    assert len(compared) == 3
    for layer, (queries, weight, old_queries, new_keys, rows, old_keys, *_) in enumerate(compared):
        tracked = WeightedRows.of(wanted, rows.shape[1]).rows
        assert 9 in rows[0]
        assert torch.equal(old_keys, take(keys[layer], rows, dim=2))
        assert torch.equal(new_keys, cache.read(layer)[0])
        assert torch.equal(old_queries, take(asked[layer], tracked).transpose(1, 2))
        now = take(cache.features("queries", layer), tracked).transpose(1, 2)
        assert torch.equal(queries[:, :, weight.shape[1] :], now)


def test_the_most_attended_of_each_layer_are_chosen_among_the_eligible() -> None:
    received = torch.tensor([[[0.1, 0.9, 0.5, 0.2]], [[0.8, 0.9, 0.1, 0.2]]])
    eligible = torch.tensor([[True, False, True, True]])
    assert most_attended(received, eligible, 1).tolist() == [[True, False, True, False]]
    assert most_attended(received, eligible, 9).tolist() == eligible.tolist()


def test_short_lists_are_filled_up_with_positions_that_do_not_count() -> None:
    watched = WeightedRows.of(torch.tensor([[0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]]).bool(), 2)
    assert watched.rows.tolist() == [[1, 3], [2, 2], [3, 3]]
    assert watched.weight.tolist() == [[0.5, 0.5], [1.0, 0.0], [0.0, 0.0]]


def test_nothing_that_counts_has_not_drifted() -> None:
    watched = WeightedRows.of(torch.tensor([[0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]]).bool(), 2)
    cosine = torch.tensor([[0.5, 1.0], [0.25, 0.25], [0.0, 0.0]])
    assert watched.mean(cosine).tolist() == [0.75, 0.25, 1.0]


def test_a_run_of_full_calls_writes_what_the_plain_model_writes() -> None:
    model, options = tiny_llama(), {"gen_length": 16, "eos_early_stop": False}
    expected = generate(model, texts(2, 13), **options).sequences
    accelerate(model, "elastic-cache", warmup_steps=100)
    assert torch.equal(generate(model, texts(2, 13), **options).sequences, expected)
