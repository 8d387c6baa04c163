"""Negative prompts that resemble prompts."""

from __future__ import annotations

import pytest

from diffcache.evals.experiments.weak_guidance import TESTBEDS, resembling
from diffcache.evals.testbeds import zoo


@pytest.mark.parametrize("testbed", TESTBEDS)
def test_one_word_of_each_prompt_is_another(testbed: str) -> None:
    for prompt in zoo.prompts(testbed, 64, "heldout"):
        pairs = [*zip(prompt.split(), resembling(prompt).split(), strict=True)]
        assert sum(one != other for one, other in pairs) == 1


def test_a_texture_is_changed_before_a_size() -> None:
    assert (
        resembling("a small red circle and a large striped star")
        == "a small red circle and a large checked star"
    )
    assert resembling("a small red circle") == "a large red circle"
