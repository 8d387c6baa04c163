"""Caches that look into layers write, token by token, what plain simulations of the authors' layer steps write, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from language import references
from language.simulated import GEN, Stale, masks, model_of
from language.tiny import MASK, texts
from torch import Tensor, nn

from diffcache import accelerate, generate

PROMPT = 6


class Layers(Stale):
    """A Llama of one text whose layers are computed piece by piece."""

    def __init__(self, model: Any, length: int) -> None:
        super().__init__(model, length)
        self.layers, self.every = list(model.model.layers), list(range(length))
        self.parts = torch.zeros(len(self.layers), 2, length, model.config.hidden_size, dtype=torch.float64)
        self.inputs = torch.zeros_like(self.parts[:, 0])
        self.queries = torch.zeros(len(self.layers), length, self.heads, self.size, dtype=torch.float64)

    def embedded(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.model.model.embed_tokens.weight[tokens]
        return found

    def projected(self, i: int, x: Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of rows."""
        part, normed = self.layers[i].self_attn, self._norm(self.layers[i].input_layernorm, x)
        q, k, v = (
            (normed @ weight.T).view(len(rows), -1, self.size)
            for weight in (part.q_proj.weight, part.k_proj.weight, part.v_proj.weight)
        )
        return self._turn(q, list(rows)), self._turn(k, list(rows)), v

    def weights(self, q: Tensor, keys: Tensor) -> Tensor:
        """Attention [rows, heads, S] of queries to all keys."""
        k = keys.repeat_interleave(self.heads // self.kv_heads, dim=1)
        return (torch.einsum("nhd,shd->nhs", q, k) / math.sqrt(self.size)).softmax(-1)

    def attended(self, i: int, q: Tensor) -> Tensor:
        v = self.values[i].repeat_interleave(self.heads // self.kv_heads, dim=1)
        mixed = torch.einsum("nhs,shd->nhd", self.weights(q, self.keys[i]), v).flatten(1)
        found: Tensor = mixed @ self.layers[i].self_attn.o_proj.weight.T
        return found

    def fed_forward(self, i: int, x: Tensor) -> Tensor:
        mlp, normed = self.layers[i].mlp, self._norm(self.layers[i].post_attention_layernorm, x)
        gate = nn.functional.silu(normed @ mlp.gate_proj.weight.T) * (normed @ mlp.up_proj.weight.T)
        found: Tensor = gate @ mlp.down_proj.weight.T
        return found

    def logits(self, x: Tensor) -> Tensor:
        normed = self._norm(self.model.model.norm, x)
        return references.without_mask(normed @ self.model.lm_head.weight.T)

    def dllm_cache(
        self, tokens: Tensor, call: int, prompt_interval: int, interval: int, ratio: float
    ) -> Tensor:
        """Stored outputs of attention and MLP; between refreshes the rows of the answer whose values turned most are computed."""
        x, answer = self.embedded(tokens), self.every[PROMPT:]
        for i in range(len(self.layers)):
            of_prompt, of_answer = (i == 0 or call % every == 0 for every in (prompt_interval, interval))
            rows = answer
            if not of_answer and not ratio:
                rows = []
            elif not of_answer:
                _, _, new = self.projected(i, x[answer], answer)
                turned = nn.functional.cosine_similarity(
                    new.flatten(1), self.values[i, answer].flatten(1), dim=-1
                )
                self.values[i, answer] = new
                rows = [PROMPT + at for at in turned.argsort()[: int(ratio * len(answer))].tolist()]
            rows = [*(range(PROMPT) if of_prompt else ()), *rows]
            if rows:
                q, self.keys[i, rows], self.values[i, rows] = self.projected(i, x[rows], rows)
                self.parts[i, 0, rows] = self.attended(i, q)
                self.parts[i, 1, rows] = self.fed_forward(i, (x + self.parts[i, 0])[rows])
            x = x + self.parts[i].sum(0)
        return self.logits(x)

    def elastic(
        self, tokens: Tensor, rows: list[int], tracked: list[int], window: list[int], gamma: float, keep: int
    ) -> tuple[dict[int, Tensor], list[int], int]:
        """Logits of rows, what the layers track next, and the first layer in which all rows were computed.

        Args:
            rows: all of them at the first call.
            tracked: by the call before; none at the first call.
        """
        total = len(self.layers)
        whole = total if tracked else 0
        x, eligible = self.embedded(tokens[rows]), tokens != MASK
        following: set[int] = set()
        for i in range(total):
            self.inputs[i, rows] = x
            if i == whole:
                rows, x = self.every, self.inputs[i].clone()
            keys, old = self.keys[i].clone(), self.queries[i, tracked].clone()
            q, self.keys[i, rows], self.values[i, rows] = self.projected(i, x, rows)
            self.queries[i, rows] = q
            if i < whole:
                before = self.weights(old, keys)
                now = self.weights(self.queries[i, tracked], self.keys[i])
                if nn.functional.cosine_similarity(before, now, dim=1).mean() < gamma:
                    whole = i + 1
            received = self.weights(self.queries[i, window], self.keys[i]).sum((0, 1)) * eligible
            following |= set(received.topk(keep).indices.tolist())
            x = x + self.attended(i, q)
            x = x + self.fed_forward(i, x)
        return dict(zip(rows, self.logits(x), strict=True)), sorted(following), whole


def surest(out: Callable[[int], Tensor], positions: Sequence[int]) -> tuple[int, int]:
    """The position that is written next, and its token."""
    tokens = {at: int(out(at).argmax()) for at in positions}
    (at,) = references.surest({at: references.log_odds(out(at), token) for at, token in tokens.items()}, 1)
    return at, tokens[at]


@pytest.mark.parametrize("block", [16, 8])
@pytest.mark.parametrize(
    ("prompt_interval", "interval", "ratio"),
    [(50, 7, 0.25), (5, 3, 0.5), (3, 50, 0.25), (4, 4, 0.0), (3, 5, 0.0)],
)
@torch.no_grad()
def test_dllm_cache(prompt_interval: int, interval: int, ratio: float, block: int) -> None:
    model, prompts = model_of(8.0), texts(2, PROMPT)
    expected = []
    for prompt in prompts:
        x = torch.cat([prompt, torch.full((GEN,), MASK)])
        layers = Layers(model, len(x))
        for call in range(GEN):
            end = PROMPT + (call // block + 1) * block
            out = layers.dllm_cache(x, call, prompt_interval, interval, ratio)
            at, token = surest(out.__getitem__, [at for at in masks(x) if at < end])
            x[at] = token
        expected.append(x)
    accelerate(model, "dllm-cache", prompt_interval=prompt_interval, interval=interval, ratio=ratio)
    found = generate(model, prompts, gen_length=GEN, block_length=block, eos_early_stop=False)
    assert torch.equal(found.sequences, torch.stack(expected))


@pytest.mark.parametrize(("window", "keep"), [(4, 1), (16, 2)])
@pytest.mark.parametrize("gamma", [-1.01, 0.97, 0.984, 0.99, 1.01])
@torch.no_grad()
def test_elastic_cache(gamma: float, window: int, keep: int) -> None:
    model, refreshed = model_of(8.0), set[int]()
    prompts, expected = texts(2, PROMPT), []
    for prompt in prompts:
        x = torch.cat([prompt, torch.full((GEN,), MASK)])
        layers, tracked, fresh = Layers(model, len(x)), list[int](), list[int]()
        for call in range(GEN):
            first = masks(x)[:window]
            rows = sorted({*first, *fresh, *tracked}) if call else layers.every
            out, tracked, whole = layers.elastic(x, rows, tracked, first, gamma, keep)
            refreshed |= {whole} if call else set()
            at, token = surest(out.__getitem__, first)
            x[at], fresh = token, [at]
        expected.append(x)
    found = []
    for prompt in prompts:  # texts in a batch are refreshed together
        accelerate(model, "elastic-cache", threshold=gamma, window=window, tracked=keep)
        found += generate(model, prompt[None], gen_length=GEN, eos_early_stop=False).sequences
    assert torch.equal(torch.stack(found), torch.stack(expected))
    assert {-1.01: refreshed == {3}, 1.01: refreshed == {1}}.get(gamma, len(refreshed) > 1)
