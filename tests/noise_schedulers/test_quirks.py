"""What is read of noise schedulers that keep their noise levels in different ways, against levels written down by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diffcache.noise_schedulers.quirks import index_in_list, sigmas_of

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


def test_a_timestep_is_found_by_where_it_lies_and_not_by_its_value() -> None:
    noise_scheduler = SimpleNamespace(timesteps=T([9.0, 4.0, 4.0]))
    assert index_in_list([torch.randn(3), noise_scheduler.timesteps[2]], noise_scheduler) == 2
    assert index_in_list([noise_scheduler.timesteps[1].expand(5)], noise_scheduler) == 1
    assert index_in_list([T(4.0), noise_scheduler.timesteps], noise_scheduler) is None
