"""What is read of noise schedulers that keep their noise levels in different ways, against levels written down by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import diffusers
import pytest
import torch

from diffcache.noise_schedulers.quirks import sigmas_of

T = torch.tensor
ALPHAS = T([0.8, 0.5, 0.2])

LEVELS: dict[str, tuple[dict[str, Any], list[float] | None]] = {
    "a level for each step, and a last one": (
        {"timesteps": T([9.0, 4.0]), "sigmas": T([2.0, 1.0, 0.0])},
        [2.0, 1.0],
    ),
    "every second evaluation between two levels (KDPM2)": (
        {
            "timesteps": T([9.0, 6.0, 4.0]),
            "sigmas": T([3.0, 2.0, 1.0]),
            "sigmas_interpol": T([3.0, 2.5, 2.0]),
        },
        [3.0, 2.5, 1.0],
    ),
    "the training's alphas": ({"timesteps": T([2, 1, 0]), "alphas_cumprod": ALPHAS}, [2.0, 1.0, 0.5]),
    "zero terminal SNR: the first level is infinite": (
        {"timesteps": T([2, 1]), "alphas_cumprod": T([0.8, 0.5, 0.0])},
        None,
    ),
    "fewer levels than timesteps": ({"timesteps": T([9.0, 4.0]), "sigmas": T([2.0])}, None),
    "neither sigmas nor alphas": ({"timesteps": T([9.0, 4.0])}, None),
}
"""By what is special: a noise scheduler's attributes, and its noise levels; None where they are unknown."""


@pytest.mark.parametrize(("attributes", "levels"), LEVELS.values(), ids=LEVELS)
def test_noise_levels(attributes: dict[str, Any], levels: list[float] | None) -> None:
    found = sigmas_of(SimpleNamespace(**attributes))
    assert found == (None if levels is None else pytest.approx(levels))
    assert found is None or all(map(math.isfinite, found))


@pytest.mark.parametrize("name", ["Euler", "EulerAncestral", "Heun", "KDPM2", "KDPM2Ancestral", "LMS"])
def test_noise_levels_are_those_by_which_inputs_are_scaled(name: str) -> None:
    noise_scheduler = getattr(diffusers, f"{name}DiscreteScheduler")()
    noise_scheduler.set_timesteps(6)
    levels, sample, scales = sigmas_of(noise_scheduler), torch.ones(1, 1), []
    for time in noise_scheduler.timesteps:
        scales.append(float(sample / noise_scheduler.scale_model_input(sample, time)))
        sample = noise_scheduler.step(torch.zeros_like(sample), time, sample).prev_sample + 1
    assert levels is not None
    assert [math.hypot(level, 1) for level in levels] == pytest.approx(scales, rel=1e-4)
