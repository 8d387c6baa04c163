"""Edits of the kontext testbed: every prompt fits, has a reference, and asks for a change."""

from __future__ import annotations

import pytest
import torch

from diffcache.evals.testbeds import edits, zoo
from diffcache.evals.testbeds.emoji import GROUNDS
from diffcache.evals.training import kontext, text


def test_every_prompt_edits_a_drawing_that_has_a_reference() -> None:
    prompts = edits.prompts()
    assert len(prompts) == len(set(prompts)) > 600
    assert {edits.edited(prompt) for prompt in prompts} == set(edits.NAMES)
    assert edits.edited("smiling face with halo with red heart") == "smiling face with halo"
    with pytest.raises(ValueError, match="edits none"):
        edits.edited("a cat on a mat")


def test_no_prompt_asks_for_what_the_reference_shows() -> None:
    for name in edits.NAMES:
        assert f"{name} on {edits.ground_of(name)}" not in edits.prompts()
        assert edits.with_sticker(name, name) not in edits.prompts()


def test_every_word_is_one_token_and_every_prompt_fits() -> None:
    vocabulary, prompts = kontext.vocabulary(), edits.prompts()
    t5, clip = text.t5_tokenizer(vocabulary), text.clip_tokenizer(vocabulary)
    for prompt, by_t5, by_clip in zip(prompts, t5(prompts).input_ids, clip(prompts).input_ids, strict=True):
        words = len(prompt.split())
        assert len(by_t5) == words + 1, prompt
        assert len(by_clip) == words + 2 <= kontext.LENGTH, prompt
    assert zoo.sample_call("kontext", 0)["max_sequence_length"] == kontext.LENGTH


def test_the_references_are_in_the_order_of_the_names() -> None:
    pictures = edits.references(list(edits.NAMES))
    assert pictures.shape == (len(edits.NAMES), 3, 64, 64)
    corners = pictures[:, :, [0, 0, -1, -1], [0, -1, 0, -1]].median(dim=2).values
    grounds = torch.tensor([GROUNDS[edits.ground_of(name)] for name in edits.NAMES])
    torch.testing.assert_close(corners, grounds, atol=0.01, rtol=0)
    assert torch.equal(edits.references([edits.NAMES[5]])[0], pictures[5])


def test_a_call_has_the_reference_of_each_prompt() -> None:
    call = zoo.sample_call("kontext", 0, n=5)
    expected = edits.references([edits.edited(prompt) for prompt in call["prompt"]])
    assert torch.equal(call["image"], expected)
