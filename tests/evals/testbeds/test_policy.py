"""The policy testbed: the task can be solved, the policy solves it, and it runs under a cache."""

from __future__ import annotations

import pytest
import torch
from diffusers import DDIMScheduler

from diffcache import accelerate, report, restore
from diffcache.evals.testbeds.diffusion_policy import (
    ACTION,
    FOLDER,
    HORIZON,
    OBSERVATION,
    SEEN,
    PolicyTransformer,
    ddpm,
    sample_actions,
)
from diffcache.evals.testbeds.reaching_task import (
    GOAL_RADIUS,
    World,
    demonstrations,
    expert,
    roll_out,
    success_rate,
)

FLOOR = 0.8
"""Success that 32 episodes with 20 steps must reach; the fact sheet states what was measured with more."""


@pytest.fixture(scope="module")
def net() -> PolicyTransformer:
    return PolicyTransformer.load()


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_the_expert_reaches_the_goal_on_either_side(side: float) -> None:
    world = World.sample(200, torch.Generator().manual_seed(0))
    assert roll_out(world, expert(torch.full((200,), side))).success.all()


def test_the_straight_way_is_blocked() -> None:
    world = World.sample(200, torch.Generator().manual_seed(0))
    driven = roll_out(world, lambda seen: (seen[:, -1:, 2:4] / 0.08).clamp(-1, 1))
    assert driven.success.float().mean() < 0.3


def test_demonstrations_are_what_the_expert_does_next_on_the_way() -> None:
    observations, actions = demonstrations(20, torch.Generator().manual_seed(0))
    assert observations.shape[1:] == (SEEN, OBSERVATION)
    assert actions.shape == (len(observations), HORIZON, ACTION)
    either = [expert(torch.full((len(actions),), side))(observations)[:, 0] for side in (1.0, -1.0)]
    error = torch.stack([(action - actions[:, 0]).abs().amax(1) for action in either]).amin(0)
    assert error.max() < 1e-5
    assert torch.linalg.vector_norm(observations[:, -1, 2:4], dim=1).min() >= GOAL_RADIUS


def test_the_policy_reaches_the_goal(net: PolicyTransformer) -> None:
    assert success_rate(net, 32, 20, seed=3) >= FLOOR


def test_an_action_sees_no_later_one(net: PolicyTransformer) -> None:
    actions, seen = torch.randn(1, HORIZON, ACTION), torch.randn(1, SEEN, OBSERVATION)
    changed = actions.clone()
    changed[:, 5:] += 1
    before, after = (net(x, torch.tensor(50), seen) for x in (actions, changed))
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_it_runs_under_a_cache_and_comes_back_exactly(net: PolicyTransformer) -> None:
    seen = torch.randn(4, SEEN, OBSERVATION, generator=torch.Generator().manual_seed(0))
    ddim = DDIMScheduler.from_config(ddpm().config)

    def sampled() -> torch.Tensor:
        return sample_actions(net, seen, 12, torch.Generator().manual_seed(1), ddim)

    full = sampled()
    accelerate(net, "uniform", interval=2)
    cached = sampled()
    share = report(net).compute_fraction
    restore(net)
    assert share < 0.7
    assert 0 < float((cached - full).abs().max()) < 0.5
    assert torch.equal(sampled(), full)


def test_the_weights_are_small() -> None:
    assert (FOLDER / "policy.safetensors").stat().st_size < 2_000_000
