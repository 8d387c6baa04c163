"""Bounds hold with the confidence that they state."""

from __future__ import annotations

import pytest
import torch

from diffcache.profiling.tuning.parts import three_parts
from diffcache.profiling.tuning.promises import fewest, least_share, needed, reached


def test_bounds_by_hand() -> None:
    assert least_share(29, 29) == pytest.approx(0.05 ** (1 / 29))
    assert least_share(0, 5) == 0
    assert least_share(9, 10) == pytest.approx(0.6058, abs=1e-4)  # Clopper and Pearson's table
    assert (fewest(0.9), fewest(0.95)) == (29, 59)
    assert needed(29, 0.9) == needed(28, 0.9) + 1 == 29
    assert needed(61, 0.9) == 59
    assert reached(torch.arange(28.0), 0.9) is None
    assert reached(torch.arange(29.0), 0.9) == 0
    assert reached(torch.arange(100.0), 0.9) == 4


@pytest.mark.parametrize("share", [0.7, 0.9, 0.95])
def test_bounds_hold_as_often_as_they_say(share: float) -> None:
    """2000 draws of 40 samples from a distribution whose quantile is known; a wrong bound may come in 5 % of them."""
    noise = torch.Generator().manual_seed(0)
    draws = torch.rand(2000, 40, generator=noise)
    missed = 0
    for draw in draws:
        bound = reached(draw, share)
        missed += bound is not None and bound > 1 - share  # `share` of all lie above the quantile 1 - share
    assert missed / len(draws) < 0.06
    kept = (draws >= 1 - share).sum(1)
    assert sum(least_share(int(k), 40) > share for k in kept) / len(draws) < 0.06


def test_no_prompt_is_in_two_parts() -> None:
    calls = [{"prompt": prompt} for prompt in "abcabcabcdef"]
    parts = three_parts(calls, 4)
    prompts = [{call["prompt"] for call in part} for part in parts]
    assert not prompts[0] & (prompts[1] | prompts[2])
    assert not prompts[1] & prompts[2]
    assert sum(map(len, parts)) == len(calls)
    assert all(map(len, three_parts([{"steps": 4}] * 3, 4)))
    assert [len(part) for part in three_parts([{"prompt": str(i)} for i in range(20)], 4)] == [4, 8, 8]


def test_of_two_calls_none_verifies_and_one_is_all_there_is() -> None:
    first, second = ({"prompt": text} for text in "ab")
    assert three_parts([first, second], 4) == ([first], [second], [])
    assert three_parts([first], 4) == ([first], [first], [])
