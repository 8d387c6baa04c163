"""How near predictions can come: the best weights, what they miss, and what a denoiser's blocks are given and add."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from diffcache.evals.experiments.prediction_limits import _hidden, covariances_of, fitted_weights, missed

TICKS, COMPUTED = 9, (0, 2, 4, 6, 8)


def lines(samples: int, seed: int = 0) -> list[torch.Tensor]:
    """Velocities [samples, elements] that change along straight lines."""
    generator = torch.Generator().manual_seed(seed)
    start, slope = torch.randn(2, samples, 500, generator=generator, dtype=torch.float64)
    return [start + tick * slope for tick in range(TICKS)]


def test_a_straight_line_is_extrapolated_exactly_from_two_ticks_on() -> None:
    covariance = covariances_of(lines(1), TICKS, 1)
    (weights,) = fitted_weights(covariance, COMPUTED)
    assert weights[1] @ np.ones(5) == pytest.approx(1.0, abs=0.2)  # of one tick: no line
    for tick in (3, 5, 7):
        assert weights[tick] @ np.array(COMPUTED) == pytest.approx(tick, rel=1e-3)
        assert not weights[tick, [i for i, computed in enumerate(COMPUTED) if computed > tick]].any()


def test_what_holding_misses_is_how_far_the_velocity_has_moved() -> None:
    velocities = lines(3)
    held = np.array(
        [[float(tick in (computed, computed + 1)) for computed in COMPUTED] for tick in range(TICKS)]
    )
    moved = sum(float((velocities[tick] - velocities[tick - 1]).square().sum()) for tick in (1, 3, 5, 7))
    assert missed(covariances_of(velocities, TICKS, 3), held[None], COMPUTED) == pytest.approx(moved)


def test_weights_of_each_sample_miss_no_more_than_common_ones() -> None:
    generator = torch.Generator().manual_seed(1)
    rough = [torch.randn(4, 30, generator=generator, dtype=torch.float64) for _ in range(TICKS)]
    covariances = covariances_of(rough, TICKS, 4)
    common = missed(covariances, fitted_weights(covariances.sum(axis=0, keepdims=True), COMPUTED), COMPUTED)
    each = missed(covariances, fitted_weights(covariances, COMPUTED), COMPUTED)
    assert each < 0.99 * common


def test_both_guidance_passes_of_a_sample_are_its_own() -> None:
    in_one_call = [torch.tensor([[1.0], [2.0], [3.0], [4.0]])]
    in_two_calls = [torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0, 0.0], [0.0, 4.0]])]
    for tensors in (in_one_call, in_two_calls):
        assert covariances_of(tensors, 1, 2)[:, 0, 0].tolist() == [1 + 9, 4 + 16]


class Rows(nn.Module):
    """Three blocks that add one, two and three; the second returns what a text adds, too."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer_blocks = nn.ModuleList(map(Adds, (1, 2)))
        self.single_transformer_blocks = nn.ModuleList(map(Adds, (3, 4)))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in (*self.transformer_blocks, *self.single_transformer_blocks):
            _, hidden = block(hidden_states=hidden)
        return hidden


class Adds(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, hidden_states: torch.Tensor) -> Any:
        return None, hidden_states + self.number


def test_hidden_states_are_those_before_in_the_middle_of_and_after_all_blocks() -> None:
    denoiser = Rows()
    with _hidden(denoiser) as hidden:
        denoiser(torch.zeros(1))
    assert [float(state) for state in hidden] == [0, 3, 10]
    denoiser(torch.zeros(1))
    assert len(hidden) == 3  # hooks are gone


def test_a_denoiser_without_rows_of_blocks_shows_no_hidden_states() -> None:
    with _hidden(nn.Linear(1, 1)) as hidden:
        assert hidden == []
