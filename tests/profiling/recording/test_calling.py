"""Prompts become calls, and calls have a hash."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from support.searches.flux_calls import FLUX, flux_calls

from diffcache.profiling.recording.calling import calls_hash, calls_of


def test_each_prompt_is_a_call_with_a_seed_of_its_own() -> None:
    calls = calls_of(["a", "b"], seed=7, height=64)
    found = [(call["prompt"], call["generator"].initial_seed(), call["height"]) for call in calls]
    assert found == [("a", 7, 64), ("b", 8, 64)]


def test_a_whole_call_keeps_its_own_arguments() -> None:
    generator = torch.Generator().manual_seed(3)
    (call,) = calls_of([{"class_labels": [1], "generator": generator}], height=64)
    assert call == {"class_labels": [1], "generator": generator, "height": 64}


def test_the_hash_of_calls_follows_from_what_they_are_given() -> None:
    assert calls_hash(flux_calls(6)) == calls_hash(flux_calls(6))
    assert calls_hash(flux_calls(6)) != calls_hash([FLUX.call(0, 6), FLUX.call(2, 6)])


def test_masks_of_other_shapes_are_other_calls() -> None:
    masks = [
        torch.ones(2, 3),
        torch.ones(3, 2),
        Image.new("L", (2, 3), 255),
        Image.new("L", (3, 2), 255),
        np.ones((2, 3)),
        np.float32(1),
    ]
    assert len({calls_hash([{"mask_image": mask}]) for mask in masks}) == 5  # an array is as its tensor
