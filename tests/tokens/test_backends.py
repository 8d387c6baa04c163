"""Attention backends of Diffusers' registry: stand-ins for flash, sage and varlen attention, which need a GPU."""

from __future__ import annotations

from threading import Thread

import pytest
import torch
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry
from support.token_rows import frozen
from torch.nn import functional
from zoo.denoisers import CASES

from diffcache.hooks.attention_backends import backends_handed_to


def by_hand(query, key, value, attn_mask=None, scale=None):
    """Attention without `scaled_dot_product_attention`, [batch, tokens, heads, channels] as backends are given."""
    scores = torch.einsum("bqhc,bkhc->bhqk", query, key) * (scale or query.shape[-1] ** -0.5)
    if attn_mask is not None:
        assert attn_mask.ndim == 4
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    return torch.einsum("bhqk,bkhc->bqhc", scores.softmax(-1), value)


def by_torch(query, key, value, attn_mask=None, scale=None):
    """As some backends fall back to."""
    heads_first = (tensor.transpose(1, 2) for tensor in (query, key, value))
    return functional.scaled_dot_product_attention(*heads_first, attn_mask, scale=scale).transpose(1, 2)


class StandIn:
    """Takes a backend's place in the registry, and counts queries."""

    def __init__(self, monkeypatch, name, attend):
        def stand_in(query, key, value, attn_mask=None, scale=None):
            self.queries.append(query.shape[1])
            self.keys.append(key.shape[1])
            return attend(query, key, value, attn_mask, scale)

        self.name, self.function, self.queries, self.keys = AttentionBackendName(name), stand_in, [], []
        monkeypatch.setitem(_AttentionBackendRegistry._backends, self.name, stand_in)
        names = {"query", "key", "value", "attn_mask", "scale"}
        monkeypatch.setitem(_AttentionBackendRegistry._supported_arg_names, self.name, names)

    def built(self, case):
        """A denoiser whose attentions are computed here."""
        net = case.build()
        for module in net.modules():
            if hasattr(getattr(module, "processor", None), "_attention_backend"):
                module.processor._attention_backend = self.name
        return net


@pytest.mark.parametrize("attend", [by_hand, by_torch])
@pytest.mark.parametrize("name", ["flash", "sage", "flash_varlen"])
@pytest.mark.parametrize("denoiser", ["FluxTransformer2DModel", "QwenImageTransformer2DModel"])
def test_some_tokens_are_computed_through_the_registry(monkeypatch, denoiser, name, attend):
    stand_in = StandIn(monkeypatch, name, attend)
    ran = frozen(CASES[denoiser], net=stand_in.built(CASES[denoiser]))
    assert ran.mark == "%", ran.reason
    assert ran.error <= 1e-6
    assert stand_in.queries[-1] < stand_in.queries[0] == stand_in.keys[-1]  # some queries, all keys
    assert _AttentionBackendRegistry._backends[stand_in.name] is stand_in.function


def test_keys_that_are_withheld_are_missed_by_a_backend_too(monkeypatch):
    from diffcache.store.key_values import KeyValues

    stand_in = StandIn(monkeypatch, "flash", by_hand)
    kept = KeyValues.get
    monkeypatch.setattr(KeyValues, "get", lambda *args: tuple(t.zero_() for t in kept(*args)))
    case = CASES["FluxTransformer2DModel"]
    assert frozen(case, net=stand_in.built(case)).error > 1e-2


def test_other_threads_and_later_calls_reach_the_backend_itself(monkeypatch):
    stand_in = StandIn(monkeypatch, "flash", by_hand)
    tokens = torch.zeros(1, 4, 2, 8)
    handed = []

    def call():
        _AttentionBackendRegistry._backends[stand_in.name](query=tokens, key=tokens, value=tokens)

    with backends_handed_to(lambda backend, arguments: handed.append(backend)):
        call()
        assert (handed, stand_in.queries) == ([stand_in.function], [])
        with backends_handed_to(None):
            call()
        thread = Thread(target=call)
        thread.start()
        thread.join()
        assert (len(handed), stand_in.queries) == (1, [4, 4])
    call()
    assert (len(handed), stand_in.queries) == (1, [4, 4, 4])
    assert _AttentionBackendRegistry._backends[stand_in.name] is stand_in.function
