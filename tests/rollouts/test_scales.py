"""Next-scale models: budgets, choices and bytes."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from diffcache import ConfigError, TargetError
from diffcache.evals.testbeds.next_scale_model import NextScale, SelfAttention
from diffcache.rollouts.book import Book
from diffcache.rollouts.policies import Chunk
from diffcache.rollouts.scale_kv import ScaleKV, drafters_of, relative_selectivity, selectivity
from diffcache.rollouts.scales import choose_drafters, scales


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return NextScale(width=24, heads=3, layers=4).eval().requires_grad_(False)


def drawn(model):
    return model.sample(torch.arange(3), torch.Generator().manual_seed(0))


@pytest.mark.parametrize("scale", range(7))
@pytest.mark.parametrize("drafters", [(), (0,), (1, 3)])
def test_budgets_of_all_layers_add_up_at_every_scale(scale, drafters):
    policy = ScaleKV(budget=40, drafters=drafters, refiner_share=0.5, decay=0.05)
    budgets = [policy.tokens(layer, 4, scale) for layer in range(4)]
    assert 4 * 40 - 4 < sum(budgets) <= 4 * 40
    refiners = [budgets[layer] for layer in range(4) if layer not in drafters]
    assert set(refiners) == {40 if not drafters else round(40 * (0.5 - 0.05 * scale))}


def test_an_endless_budget_changes_nothing_and_a_small_one_holds(model):
    full = drawn(model)
    with scales(model, ScaleKV(budget=10_000)) as caches:
        assert torch.equal(drawn(model), full)
    whole = caches.kept_bytes[-1]
    policy = ScaleKV(budget=20, drafters=(1,))
    with scales(model, policy) as caches:
        assert not torch.equal(drawn(model), full)
    tokens = sum(policy.tokens(layer, 4, 6) for layer in range(4))
    assert caches.kept_bytes[-1] == tokens * 3 * 2 * 24 * 4  # samples, key and value, width, fp32
    assert caches.most_bytes < whole
    assert torch.equal(drawn(model), full)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_each_head_keeps_what_it_attends_to():
    policy = ScaleKV(budget=3, pool=1)
    relevance = torch.tensor([[[0.0, 3, 1, 2, 0, 0], [5.0, 0, 0, 0, 4, 3]]])
    marks = torch.zeros(6, dtype=torch.int64)
    index = policy.kept(Book.of_chunk(marks, marks, 1), Chunk(1, 1, 6), relevance)
    assert index.tolist() == [[[1, 2, 3], [0, 4, 5]]]


def test_neighbours_of_a_relevant_token_count_too():
    relevance = torch.zeros(1, 1, 9)
    relevance[0, 0, 4] = 1.0
    marks = torch.zeros(9, dtype=torch.int64)
    index = ScaleKV(budget=5).kept(Book.of_chunk(marks, marks, 1), Chunk(1, 1, 9), relevance)
    assert index.tolist() == [[[2, 3, 4, 5, 6]]]


def test_a_query_for_each_patch():
    policy, query = ScaleKV(), torch.arange(64.0).view(1, 1, 64, 1)
    assert policy.observed(query, Chunk(5, 1, 64)).flatten()[:5].tolist() == [9, 11, 13, 15, 25]
    assert policy.observed(query[:, :, :9], Chunk(2, 1, 9)).shape[2] == 9


def test_selectivity_is_attention_on_the_own_map_times_that_on_the_most_seen_past():
    key = torch.eye(4)[None, None]  # three past tokens and the own one
    query = torch.tensor([4.0, 2.0, 1.0, 3.0]).log()[None, None, None]  # attention .4, .2, .1, .3
    assert selectivity(query, key, 1.0, 1) == pytest.approx(0.3 * 0.4)
    assert selectivity(query, key, 1.0, 2) == pytest.approx(0.3 * 0.6)
    assert selectivity(query, key[:, :, 3:], 1.0, 1) == 0.0


def test_drafters_are_the_least_selective_layers_of_each_scale():
    scores = relative_selectivity([[0.5, 0.1, 0.4], [500.0, 20.0, 10.0]])
    assert sum(scores) == pytest.approx(0.0, abs=1e-6)
    assert drafters_of(scores, 1) == (1,)
    assert drafters_of(scores, 2) == (1, 2)


def test_drafters_are_chosen_from_samples(model):
    chosen = choose_drafters(model, lambda: drawn(model), 2)
    assert len(chosen) == 2
    assert chosen == choose_drafters(model, lambda: drawn(model), 2)
    with pytest.raises(TargetError, match="choose fewer"):
        choose_drafters(model, lambda: drawn(model), 4)


class TokensFirst(SelfAttention):
    """The published module's other layout: caches [B, tokens, heads, channels]."""

    def forward(self, x, mask):
        q, k, v = self.mat_qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        if self.caching:
            if self.cached_k is not None:
                k, v = torch.cat((self.cached_k, k), 1), torch.cat((self.cached_v, v), 1)
            self.cached_k, self.cached_v = k, v
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(attended.transpose(1, 2).flatten(2))


def test_both_layouts_of_the_published_attention_give_the_same(model):
    policy = ScaleKV(budget=20, drafters=(1,))
    with scales(model, policy):
        wanted = drawn(model)
    for block in model.blocks:
        block.attn.__class__ = TokensFirst
    try:
        with scales(model, policy) as caches:
            assert torch.equal(drawn(model), wanted)
        assert caches.kept_bytes[-1] > 0
    finally:
        for block in model.blocks:
            block.attn.__class__ = SelfAttention


def test_other_modules_and_options_are_refused():
    with (
        pytest.raises(TargetError, match="has no attention with caching"),
        scales(nn.Linear(2, 2), ScaleKV()),
    ):
        pass
    for options in (
        {"budget": 0},
        {"budget": 1.5},
        {"pool": 4},
        {"pool": -1},
        {"observations": 15},
        {"observations": 0},
        {"refiner_share": 0.0},
        {"drafters": 3},
    ):
        with pytest.raises(ConfigError, match=next(iter(options))):
            ScaleKV(**options)


@pytest.mark.parametrize("drafters", [(-1,), (99,), ("attn",), (1, 1)])
def test_drafters_that_the_model_has_not_are_refused(model, drafters):
    with (
        pytest.raises(ConfigError, match=r"drafters=\("),
        scales(model, ScaleKV(drafters=drafters)),
    ):
        pass


def test_what_is_no_model_policy_or_sample_is_refused(model):
    with pytest.raises(TargetError, match="int has no attention with caching"), scales(3, ScaleKV()):
        pass
    with pytest.raises(ConfigError, match="policy=3: give a ScaleKV"), scales(model, 3):
        pass
    with pytest.raises(ConfigError, match="sample=3: give a function"):
        choose_drafters(model, 3, count=1)
    with pytest.raises(ConfigError, match="drew no two scales with the model's caches"):
        choose_drafters(model, lambda: 3, count=1)


def test_a_selectivity_of_no_tokens_is_refused(model):
    with pytest.raises(ConfigError, match="top=0: give a whole number"):
        choose_drafters(model, lambda: None, count=1, top=0)
