"""Choosing ticks by response: the errors of a linear picture are predicted, and the best ticks are found."""

from itertools import combinations

import pytest
import torch

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.response import PictureResponse, coordinates, placements

TICKS = 9


def linear(order: int, seed: int = 0) -> tuple[PictureResponse, torch.Tensor, torch.Tensor]:
    """A picture that is linear in features, which are polynomials of degree order + 1. So first order is exact."""
    rng = torch.Generator().manual_seed(seed)
    at = torch.arange(TICKS, dtype=torch.float64)
    features = at.unsqueeze(1) ** (order + 1)
    weights = torch.randn(TICKS, 5, generator=rng, dtype=torch.float64)
    moves = torch.zeros(TICKS, 5, dtype=torch.float64)
    for t in range(order + 1, TICKS):
        heads = tuple(range(t - 1, t - 2 - order, -1))
        moves[t] = weights[t] * (filled(features, heads, t) - features[t])
    drift = (at - at.unsqueeze(1)).clamp_min(0)
    return PictureResponse(moves, drift, order), features, weights


def filled(features: torch.Tensor, heads: tuple[int, ...], tick: int) -> torch.Tensor:
    total = torch.zeros(1, dtype=torch.float64)
    for j, head in enumerate(heads):
        weight = 1.0
        for other in heads[:j] + heads[j + 1 :]:
            weight *= (tick - other) / (head - other)
        total = total + weight * features[head]
    return total


def true_error(features: torch.Tensor, weights: torch.Tensor, ticks: list[int], order: int) -> float:
    total = torch.zeros(5, dtype=torch.float64)
    for t in range(TICKS):
        if t not in ticks:
            heads = tuple(sorted((h for h in ticks if h < t), reverse=True)[: order + 1])
            total += weights[t] * (filled(features, heads, t) - features[t])
    return float(total.square().sum())


@pytest.mark.parametrize("order", [0, 1])
def test_the_error_of_a_linear_picture_is_predicted(order: int) -> None:
    response, features, weights = linear(order)
    for ticks in ([0, 1, 3, 4, 7], [0, 1, 2, 8], [0, 1, 5]):
        assert response.error(ticks) == pytest.approx(true_error(features, weights, ticks, order))


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_with_enough_width_the_best_ticks_are_found(
    order: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffcache.schedulers.search.response.WIDTH", 1000)
    response, _, _ = linear(order, seed)
    found = placements(response, 6, longest=TICKS)
    for ticks in found:
        rivals = combinations(range(order + 1, TICKS), len(ticks) - order - 1)
        best = min(response.error([*range(order + 1), *rest]) for rest in rivals)
        assert response.error(ticks) == pytest.approx(best)
    assert [len(ticks) for ticks in found] == list(range(order + 1, 7))


HINDSIGHT = 2


def linear_with_hindsight(order: int, seed: int = 0) -> tuple[PictureResponse, torch.Tensor, torch.Tensor]:
    """The same with cubic features, where a parabola through computed ticks corrects the ticks between them."""
    rng = torch.Generator().manual_seed(seed)
    at = torch.arange(TICKS, dtype=torch.float64)
    features, weights = at.unsqueeze(1) ** 3, torch.randn(TICKS, 5, generator=rng, dtype=torch.float64)
    moves = torch.zeros(TICKS, 5, dtype=torch.float64)
    for t in range(1, TICKS):
        nodes = (
            (t + 1, t - 1, t - 2) if 1 < t < TICKS - 1 else tuple(range(t - 1, max(t - 2 - order, -1), -1))
        )
        moves[t] = weights[t] * (filled(features, nodes, t) - features[t])
    drift = (at - at.unsqueeze(1)).clamp_min(0)
    return PictureResponse(moves, drift, order, HINDSIGHT), features, weights


@pytest.mark.parametrize("order", [0, 1])
def test_with_hindsight_a_group_errs_by_the_remainder_of_interpolation(order: int) -> None:
    response, features, weights = linear_with_hindsight(order)
    for ticks in ([0, 1, 3, 4, 6, 7, 8], [0, 1, 5, 8], [0, 1, 2, 6, 7]):
        total = torch.zeros(5, dtype=torch.float64)
        for t in set(range(TICKS)) - set(ticks):
            before = sorted((h for h in ticks if h < t), reverse=True)
            after = [h for h in ticks if h > t][:1]
            nodes = (*after, *before[:HINDSIGHT]) if after else tuple(before[: order + 1])
            total += weights[t] * (filled(features, nodes, t) - features[t])
        assert response.error(ticks) == pytest.approx(float(total.square().sum()))


@pytest.mark.parametrize("order", [0, 1])
def test_with_hindsight_at_most_the_last_tick_is_reused_at_the_end(
    order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffcache.schedulers.search.response.WIDTH", 1000)
    response, _, _ = linear_with_hindsight(order)
    for ticks in placements(response, 6, longest=TICKS):
        rivals = (
            [*range(order + 1), *rest]
            for rest in combinations(range(order + 1, TICKS), len(ticks) - order - 1)
        )
        best = min(response.error(rival) for rival in rivals if rival[-1] >= TICKS - 2)
        assert response.error(ticks) == pytest.approx(best)


def test_opposite_errors_may_cancel() -> None:
    """Ticks 1 and 3 push the picture to one side, 5 and 7 to the other: sums of squares cannot tell which to reuse."""
    moves = torch.zeros(8, 1, dtype=torch.float64)
    moves[[1, 3]], moves[[5, 7]], moves[[2, 4, 6]] = 1.0, -1.0, 9.0
    response = PictureResponse(
        moves, (torch.arange(8.0) - torch.arange(8.0).unsqueeze(1)).clamp_min(0).double()
    )
    assert response.error(placements(response, 6)[-1]) == pytest.approx(0, abs=1e-9)
    assert response.error([0, 2, 4, 5, 6, 7]) == pytest.approx(4)


def test_coordinates_keep_lengths_and_angles() -> None:
    moves = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    found = coordinates(moves)
    assert found.shape == (4, 4)
    torch.testing.assert_close(found @ found.T, (moves.double() @ moves.double().T))


def test_too_few_ticks_for_the_longest_distance_are_refused() -> None:
    response, _, _ = linear(0)
    with pytest.raises(ConfigError, match="most: 2 ticks cannot be placed at most 3 apart in 9"):
        placements(response, 2, longest=3)
