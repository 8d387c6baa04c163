"""MeanCache: its published plans, and a loop by its published rule, from samples and velocities."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from diffcache import accelerate, denoising_run
from diffcache.config import RunFacts
from diffcache.recipes.meancache import MeanCacheConfig, MeanCachePlan, backs_by_tick
from diffcache.schedulers.errors import ConfigError

QWEN = "QwenImageTransformer2DModel"
# The authors' names of the ways to get from each computed tick to the next: "chain" is the next tick, "mean" holds, "s5" looks back 5.
WAYS_17 = ["chain"] * 8 + ["s2"] + ["mean"] * 5 + ["s4", "chain"]
WAYS_10 = ["chain", "s2", "mean", "mean", "mean", "mean", "mean", "mean", "s4"]


@pytest.mark.parametrize(
    ("budget", "ticks", "ways"),
    [
        (17, [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 17, 24, 31, 38, 45, 48, 49], WAYS_17),
        (10, [0, 1, 3, 7, 14, 21, 28, 35, 42, 49], WAYS_10),
    ],
)
def test_qwen_images_plans_are_the_published_ones(budget: int, ticks: list[int], ways: list[str]) -> None:
    plan = MeanCacheConfig(budget=budget).plan(RunFacts(QWEN, num_ticks=50))
    expected = [0] * 50
    for begin, end, way in zip(ticks, ticks[1:], ways, strict=False):
        for tick in range(begin + 1, end):
            expected[tick] = {"mean": 1, "s2": 2, "s4": 4}[way]
    assert [*plan.ticks] == ticks
    assert backs_by_tick(plan, 50) == expected


@pytest.mark.parametrize("denoiser", [QWEN, "ZImageTransformer2DModel"])
@pytest.mark.parametrize("length", [4, 9, 28, 50, 120])
def test_a_plan_for_another_length_begins_and_ends_with_computed_ticks(denoiser: str, length: int) -> None:
    facts = RunFacts(denoiser, num_ticks=length)
    plan = MeanCacheConfig(budget=25).plan(facts)
    assert (plan.ticks[0], plan.ticks[-1]) == (0, length - 1)
    assert len(plan.ticks) == pytest.approx(length / 2, abs=1)
    assert all(a < b for a, b in pairwise(plan.ticks))
    assert len(backs_by_tick(plan, length)) == length
    assert MeanCacheConfig(budget=50).plan(facts).ticks == tuple(range(length))


def test_a_budget_without_a_plan_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="budget must be one of 25, 17, 10 or 50, not 12"):
        MeanCacheConfig(budget=12).plan(RunFacts(QWEN, num_ticks=50))
    with pytest.raises(ConfigError, match="ticks and backs go together"):
        MeanCacheConfig(ticks=(0, 2))


class Field(nn.Module):
    """A velocity that bends."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5), requires_grad=False)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.sin(self.scale * x) + t.square() * x


def published(net: Field, x: Tensor, levels: list[float], plan: MeanCachePlan) -> Tensor:
    """Samples by Euler's rule; reused velocities by the samples and velocities of the ticks before, as in the authors' loop."""
    samples, velocities = [x], list[Tensor]()
    backs = backs_by_tick(plan, len(levels) - 1)
    for tick, (level, after) in enumerate(pairwise(levels)):
        if tick in plan.ticks:
            velocity = net(samples[tick], torch.tensor([level]))
        else:
            start = max(tick - backs[tick], 0)
            average = (samples[tick] - samples[start]) / (level - levels[start])
            slope = (velocities[start] - average) / (level - levels[start])
            velocity = velocities[-1] - slope * (after - level)
        velocities.append(velocity)
        samples.append(samples[tick] + (after - level) * velocity)
    return samples[-1]


def test_a_run_is_the_published_loop() -> None:
    levels = [1.0, 0.93, 0.85, 0.74, 0.66, 0.51, 0.4, 0.28, 0.21, 0.1, 0.0]
    plan = MeanCachePlan((0, 1, 2, 4, 7, 9), (1, 1, 2, 3, 4, 1))
    net, x = Field().eval(), torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0)).double()
    expected = published(net, x, levels, plan)
    accelerate(net, "meancache", ticks=plan.ticks, backs=plan.backs)
    with torch.no_grad(), denoising_run(net, 10, sigmas=levels[:-1]) as run:
        for tick, level in enumerate(levels[:-1]):
            run.begin_step(tick)
            x = x + (levels[tick + 1] - level) * net(x, torch.tensor([level]))
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("backs", [(1.5, 1.5), (0, 0), (1, True)], ids=str)
def test_a_slope_looks_back_by_whole_ticks(backs: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="backs must be a tuple of 2 whole numbers from 1"):
        MeanCacheConfig(ticks=(0, 5), backs=backs)


def test_ticks_beyond_the_run_are_refused() -> None:
    with pytest.raises(ConfigError, match="ticks go up to 60, and this run has 10"):
        MeanCacheConfig(ticks=(0, 60), backs=(1, 1)).plan(RunFacts(QWEN, num_ticks=10))
