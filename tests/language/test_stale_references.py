"""Caches write, token by token, what a plain simulation of stale keys and values writes, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from language import references
from language.simulated import GEN, Stale, masks, model_of
from language.tiny import MASK, texts
from torch import Tensor

from diffcache import accelerate, generate
from diffcache.language.sampler.noise import Noise


def dkv_decode(model: Any, prompt: Tensor, block_length: int, interval: int, ahead: bool) -> Tensor:
    """Full every `interval` calls of a block, else what is masked and what was written by the call before (the delay)."""
    x = torch.cat([prompt, torch.full((GEN,), MASK)])
    stale, fresh = Stale(model, len(x)), list[int]()
    for start in range(len(prompt), len(x), block_length):
        block = range(start, start + block_length)
        for call in range(block_length):
            left = masks(x)
            rows = sorted({*(left if ahead else set(left) & set(block)), *fresh})
            out = stale(x, list(range(len(x))) if call % interval == 0 else rows)
            tokens = {at: int(out[at].argmax()) for at in set(left) & set(block)}
            (at,) = references.surest(
                {at: references.log_odds(out[at], token) for at, token in tokens.items()}, 1
            )
            x[at], fresh = tokens[at], [at]
    return x


def window_around(chosen: set[int], target: int, masked: list[int], size: int) -> set[int]:
    """The nearest masks to one token that no other has taken, left before right."""
    free = sorted(set(masked) - chosen, key=lambda at: (abs(at - target), at > target))
    return chosen | set(free[:size])


def dkv_greedy(
    model: Any, prompt: Tensor, block_length: int, steps: int, interval: int, window: int, order: Tensor
) -> Tensor:
    """dKV-Cache-Greedy: the next tokens, those just written, and a window of masks around each of the next."""
    x = torch.cat([prompt, torch.full((GEN,), MASK)])
    stale, fresh = Stale(model, len(x)), list[int]()
    for start in range(len(prompt), len(x), block_length):
        wanted = sorted(range(start, start + block_length), key=lambda at: -float(order[at]))
        calls = steps * block_length // GEN
        for call, count in enumerate(references.even(block_length, calls)):
            following, wanted = wanted[:count], wanted[count:]
            rows = {*following, *fresh}
            for target in following:
                rows = window_around(rows, target, masks(x), window)
            out = stale(x, list(range(len(x))) if call % interval == 0 else sorted(rows))
            for at in following:
                x[at] = int(out[at].argmax())
            fresh = following
    return x


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize(("block", "interval"), [(16, 100), (16, 4), (8, 100), (8, 3)], ids=str)
@pytest.mark.parametrize("scale", [1.0, 8.0, 20.0])
@torch.no_grad()
def test_dkv_decode_with_its_delay(scale: float, block: int, interval: int, ahead: bool) -> None:
    model, prompts = model_of(scale), texts(2, 6)
    expected = torch.stack([dkv_decode(model, prompt, block, interval, ahead) for prompt in prompts])
    accelerate(model, "dkv-decode", interval=interval, ahead=ahead)
    found = generate(model, prompts, gen_length=GEN, block_length=block, eos_early_stop=False)
    assert torch.equal(found.sequences, expected)


@pytest.mark.parametrize(
    ("block", "steps", "interval", "window"), [(16, 16, 2, 4), (16, 6, 100, 2), (8, 4, 3, 1)], ids=str
)
@pytest.mark.parametrize("scale", [1.0, 8.0, 20.0])
@torch.no_grad()
def test_dkv_greedy_with_a_window_around_each_token(
    scale: float, block: int, steps: int, interval: int, window: int
) -> None:
    model, prompts, noise = model_of(scale), texts(2, 6), Noise.of([3, 4], 2, 6, torch.device("cpu"))
    orders = noise.of_positions(torch.zeros(2, 1, dtype=torch.int64), torch.arange(6 + GEN)[None])
    expected = torch.stack(
        [
            dkv_greedy(model, prompt, block, steps, interval, window, order)
            for prompt, order in zip(prompts, orders, strict=True)
        ]
    )
    accelerate(model, "dkv-greedy", interval=interval, window=window)
    options = {"gen_length": GEN, "block_length": block, "steps": steps, "remasking": "random"}
    found = generate(model, prompts, seed=[3, 4], eos_early_stop=False, **options)
    assert torch.equal(found.sequences, expected)


@torch.no_grad()
def test_the_simulation_is_the_model_where_nothing_is_stale() -> None:
    model, tokens = model_of(1.0), texts(1, 12)
    out = Stale(model, 12)(tokens[0], list(range(12)))
    own = references.without_mask(model(tokens).logits[0])
    torch.testing.assert_close(torch.stack(list(out.values())), own, atol=1e-5, rtol=0)
