"""Errors that a cache scheduler asks for are those of the guided velocity, however the guidance passes come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from diffcache import accelerate, denoising_run, report
from diffcache.engine import whole_model
from diffcache.engine.guided_values import GuidedValues
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.schedulers.guidance import TYPICAL_SCALE, Guidance
from diffcache.schedulers.moments import Moment
from diffcache.trajectory.following import PlannedTicks

TICKS = 20
SCALE = 4.0
CONFIG = TrajectoryConfig(  # with a covariance of its own, so that guidance changes no plan
    speedup=2,
    covariance=(np.eye(TICKS) + 50 + np.arange(TICKS)).tolist(),
    response=np.ones((2, TICKS)).tolist(),
)


def conditional(time: float) -> float:
    return 2 + float(np.sin(5 * time))


def unconditional(time: float) -> float:
    return 1.5 + float(np.cos(7 * time))


def guided(time: float) -> float:
    return unconditional(time) + SCALE * (conditional(time) - unconditional(time))


class Net(nn.Module):
    """What a pass returns depends on time and its condition alone: 0, 1 or, for both passes and what they make together, 2."""

    def forward(self, hidden_states: Tensor, timestep: float, condition: Tensor) -> Tensor:
        values = torch.tensor([unconditional(timestep), conditional(timestep), guided(timestep)])
        return torch.ones_like(hidden_states) * values[condition][:, None, None, None]


class DiTTransformer2DModel(Net):
    """By this name one whose batches begin with the conditional pass."""


def measured(
    monkeypatch: pytest.MonkeyPatch,
    passes: Sequence[Sequence[int]],
    scale: float | None,
    kind: Callable[[], Net] = Net,
) -> dict[int, float]:
    """What the cache scheduler is told, by tick, if each tick has these calls of these conditions."""
    found: dict[int, float] = {}

    def compared(self: PlannedTicks, past: Sequence[Moment], at: Moment, squares: Tensor) -> None:
        assert at.tick not in found
        assert all(moment.tick < at.tick for moment in past)
        size, error, _ = squares.tolist()
        found[at.tick] = error / size

    monkeypatch.setattr(PlannedTicks, "compared", compared)
    # A loop of one pass has the same plan as one of two.
    monkeypatch.setattr(TrajectoryConfig, "counts_guidance", False)
    monkeypatch.setattr(whole_model, "GuidedValues", lambda told: GuidedValues(lambda: Guidance(scale)))
    net = accelerate(kind().eval(), CONFIG)
    sigmas = [1 - tick / TICKS for tick in range(TICKS)]
    conditions = [torch.tensor(rows) for rows in passes]
    with torch.no_grad(), denoising_run(net, num_steps=TICKS, sigmas=[*sigmas, 0.0]) as loop:
        for tick, sigma in enumerate(sigmas):
            loop.begin_step(tick)
            for condition in conditions:
                net(torch.zeros(len(condition), 4, 8, 8) + sigma, sigma, condition)
    assert [*found] == report(net).computed_ticks[1:]
    return found


def test_passes_in_a_batch_or_one_after_another_are_compared_as_what_they_make_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together = measured(monkeypatch, [[2]], None)
    assert min(together.values()) > 0
    assert measured(monkeypatch, [[0, 1]], SCALE) == pytest.approx(together, rel=1e-4)
    assert measured(monkeypatch, [[1, 0]], SCALE, DiTTransformer2DModel) == pytest.approx(together, rel=1e-4)
    assert measured(monkeypatch, [[0, 0, 1, 1]], SCALE) == pytest.approx(together, rel=1e-4)


def test_of_two_calls_the_first_counts_as_the_conditional_one(monkeypatch: pytest.MonkeyPatch) -> None:
    together = measured(monkeypatch, [[2]], None)
    found = measured(monkeypatch, [[1], [0]], SCALE)
    first = min(found)  # a run does not know of a second pass before its first tick is over
    assert found == pytest.approx(together, rel=1e-4)
    assert first == min(together)


def test_guidance_keeps_the_norm_of_the_conditional_pass_where_the_pipeline_does() -> None:
    first, second = torch.randn(2, 2, 5, 3, generator=torch.Generator().manual_seed(0))
    free, kept = (Guidance(SCALE, norm_along=along).of(first, second) for along in (None, -1))
    torch.testing.assert_close(free, second + SCALE * (first - second))
    torch.testing.assert_close(kept.norm(dim=-1), first.norm(dim=-1))
    torch.testing.assert_close(torch.cosine_similarity(kept, free, dim=-1), torch.ones(2, 5))
    nothing = torch.zeros(2, 3)
    assert torch.equal(Guidance(SCALE, norm_along=-1).of(nothing, nothing), nothing)


def test_without_guidance_each_pass_stands_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = measured(monkeypatch, [[1]], SCALE)
    assert measured(monkeypatch, [[1], [0]], 1.0) == pytest.approx(alone, rel=1e-4)


def test_where_nothing_tells_the_scale_it_is_a_typical_one(monkeypatch: pytest.MonkeyPatch) -> None:
    typical = measured(monkeypatch, [[0, 1]], TYPICAL_SCALE)
    assert measured(monkeypatch, [[0, 1]], None) == typical


def test_of_three_passes_the_first_stands_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = measured(monkeypatch, [[1]], None)
    assert measured(monkeypatch, [[1], [0], [2]], SCALE) == pytest.approx(alone, rel=1e-4)


def test_a_batch_of_both_passes_may_be_followed_by_a_third_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Stable Diffusion 3 calls its denoiser with skip-layer guidance."""
    together = measured(monkeypatch, [[2]], None)
    assert measured(monkeypatch, [[0, 1], [1]], SCALE) == pytest.approx(together, rel=1e-4)
    assert measured(monkeypatch, [[0, 0, 1, 1], [1, 1]], SCALE) == pytest.approx(together, rel=1e-4)


@pytest.mark.parametrize("sizes", [(12, 8), (8, 12)], ids=str)
def test_of_two_passes_of_other_shapes_the_first_stands_for_itself(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int]
) -> None:
    """As where tokens of reference pictures are in one of them only."""
    alone = measured(monkeypatch, [[1]], None)
    found: dict[int, float] = {}

    def compared(self: PlannedTicks, past: Sequence[Moment], at: Moment, squares: Tensor) -> None:
        size, error, _ = squares.tolist()
        found[at.tick] = error / size

    monkeypatch.setattr(PlannedTicks, "compared", compared)
    net = accelerate(Net().eval(), CONFIG)
    sigmas = [1 - tick / TICKS for tick in range(TICKS)]
    with torch.no_grad(), denoising_run(net, num_steps=TICKS, sigmas=[*sigmas, 0.0]) as loop:
        for tick, sigma in enumerate(sigmas):
            loop.begin_step(tick)
            for condition, size in zip((1, 0), sizes, strict=True):
                net(torch.zeros(1, 4, size, 8) + sigma, sigma, torch.tensor([condition]))
    assert found == pytest.approx(alone, rel=1e-4)


def test_passes_that_begin_to_differ_in_their_rows_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    monkeypatch.setattr(PlannedTicks, "compared", lambda self, past, at, squares: found.append(at.tick))
    net = accelerate(Net().eval(), CONFIG.replace(speedup=1.2))
    with torch.no_grad(), denoising_run(net, num_steps=TICKS) as loop:
        for tick in range(TICKS):
            loop.begin_step(tick)
            for condition in ([1], [0] if tick < 10 else [0, 1]):
                net(torch.zeros(len(condition), 4, 8, 8) + tick, 0.5, torch.tensor(condition))
    assert {9, 10, 11} <= {*report(net).computed_ticks}
    assert [tick for tick in found if tick in (9, 10, 11)] == [9, 11]
