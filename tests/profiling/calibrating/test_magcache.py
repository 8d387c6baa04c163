"""MagCache's ratios, recorded from a pipeline."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from support.searches.flux_calls import FLUX, flux_calls
from torch import Tensor
from zoo.pipelines import CASES

from diffcache.profiling.calibrating.magcache import calibrate_magcache

STEPS = 8


def test_magcache_gets_the_ratios_of_the_pipeline() -> None:
    config = calibrate_magcache(FLUX.build(), flux_calls(STEPS), threshold=0.1)
    assert config.ratios is not None
    assert len(config.ratios) == STEPS
    assert config.ratios[0] == 1
    assert all(0.2 < ratio < 5 for ratio in config.ratios)


def test_with_two_denoisers_magcache_gets_the_ratios_of_each() -> None:
    case = CASES["WanPipeline-two-experts"]
    ratios = calibrate_magcache(case.build(), [case.call(0, STEPS)]).ratios
    assert ratios is not None
    begins = [tick for tick, ratio in enumerate(ratios) if ratio == 1]
    assert begins == [0, 3]


def test_of_a_denoiser_with_text_beside_the_picture_they_are_the_pictures() -> None:
    """A block of Flux returns the text first. Published: the norm over each token's channels, mean over tokens of its ratio."""
    pipe, given, made = FLUX.build(), list[Tensor](), list[Tensor]()
    first, last = pipe.transformer.transformer_blocks[0], pipe.transformer.single_transformer_blocks[-1]

    def note_given(module: Any, args: Any, kwargs: Any) -> None:
        given.append(kwargs["hidden_states"].clone())

    def note_made(module: Any, args: Any, output: Any) -> None:
        made.append(output[1].clone())

    first.register_forward_pre_hook(note_given, with_kwargs=True)
    last.register_forward_hook(note_made)
    FLUX.render(pipe, 0, STEPS)
    norms = [(out - x).norm(dim=-1) for x, out in zip(given, made, strict=True)]
    expected = [1.0, *(float((now / before).mean()) for before, now in pairwise(norms))]
    found = calibrate_magcache(FLUX.build(), [FLUX.call(0, STEPS)]).ratios
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=0, atol=2e-5)
