"""The policy testbed's task: move a hand in the plane to a goal, around an obstacle on either side.

Positions lie in [-1, 1]^2. An action is a velocity in [-1, 1]^2, in units of `STRIDE` for each step. Letters in shapes: n
episodes, t steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from diffcache.evals.testbeds.diffusion_policy import HORIZON, SEEN, sample_actions

STRIDE = 0.08
RADIUS = 0.3
GOAL_RADIUS = 0.08
STEPS = 56
EXECUTED = 4
_CLEARANCE = 0.12
_PACE = 0.9


@dataclass(frozen=True)
class World:
    """n episodes: the start of the hand, its goal, and the obstacle between them, each [n, 2]."""

    start: Tensor
    goal: Tensor
    obstacle: Tensor

    @classmethod
    def sample(cls, n: int, generator: torch.Generator) -> World:
        """Random episodes; the obstacle lies near the middle of the way."""
        angle = torch.rand(n, 1, generator=generator) * 2 * torch.pi
        way = torch.cat([angle.cos(), angle.sin()], 1)
        start = way * -0.8 + 0.1 * torch.randn(n, 2, generator=generator)
        goal = way * 0.8 + 0.1 * torch.randn(n, 2, generator=generator)
        middle = (start + goal) / 2 + 0.1 * torch.randn(n, 2, generator=generator)
        return cls(start, goal, middle)

    def observe(self, position: Tensor) -> Tensor:
        """Observations [n, 6]: the hand's position, and from there the vectors to the goal and to the obstacle."""
        return torch.cat([position, self.goal - position, self.obstacle - position], 1)

    def collides(self, position: Tensor) -> Tensor:
        """Whether the hand is in the obstacle, [n] bool."""
        return _size(position - self.obstacle) < RADIUS

    def reached(self, position: Tensor) -> Tensor:
        """Whether the hand is at the goal, [n] bool."""
        return _size(position - self.goal) < GOAL_RADIUS


@dataclass(frozen=True)
class Episodes:
    """What happened: `positions` [t + 1, n, 2], `actions` [t, n, 2], and `success` [n]: the goal was reached without collision."""

    positions: Tensor
    actions: Tensor
    success: Tensor


def roll_out(world: World, act: Callable[[Tensor], Tensor]) -> Episodes:
    """Moves the hand by `act`, which maps observations [n, o, 6], the newest last, to the next actions [n, k, 2]."""
    position = world.start
    seen = [world.observe(position)] * SEEN
    positions: list[Tensor] = [position]
    actions: list[Tensor] = []
    reached, collided = world.reached(position), world.collides(position)
    while len(actions) < STEPS:
        for action in act(torch.stack(seen[-SEEN:], 1)).unbind(1):
            moving = ~reached.unsqueeze(1)
            position = position + STRIDE * action.clamp(-1, 1) * moving
            reached, collided = reached | world.reached(position), collided | world.collides(position)
            seen.append(world.observe(position))
            positions.append(position)
            actions.append(action)
    return Episodes(torch.stack(positions), torch.stack(actions), reached & ~collided)


def expert(side: Tensor) -> Callable[[Tensor], Tensor]:
    """Moves towards the goal, and along the obstacle's edge where that is in the way; `side` [n]: 1 for left, -1 for right."""

    def act(observations: Tensor) -> Tensor:
        goal, obstacle = observations[:, -1, 2:4], observations[:, -1, 4:6]
        ahead, away = _unit(goal), -_unit(obstacle)
        distance = _size(obstacle).unsqueeze(1)
        around = torch.stack([-away[:, 1], away[:, 0]], 1) * -side.unsqueeze(1)
        in_the_way = (obstacle * ahead).sum(1, keepdim=True) > 0
        near = ((RADIUS + 2 * _CLEARANCE - distance) / _CLEARANCE).clamp(0, 1) * in_the_way
        outward = ((RADIUS + _CLEARANCE - distance) / _CLEARANCE).clamp(-0.5, 1)
        direction: Tensor = _unit((1 - near) * ahead + near * (around + outward * away))
        speed = (_size(goal) / STRIDE).clamp_max(1).unsqueeze(1)
        return (direction * speed * _PACE).unsqueeze(1)

    return act


def success_rate(net: torch.nn.Module, episodes: int, steps: int, seed: int = 0) -> float:
    """Share of episodes in which a policy reaches the goal without touching the obstacle.

    Of each 8 actions that the policy samples, 4 are executed; then it observes and samples again.

    Args:
        net: a `PolicyTransformer`, accelerated or not.
        episodes: how many, all at once.
        steps: denoising steps.
        seed: of the episodes and of the noise.
    """
    generator = torch.Generator().manual_seed(seed)
    world = World.sample(episodes, generator)

    def act(observations: Tensor) -> Tensor:
        return sample_actions(net, observations, steps, generator)[:, :EXECUTED]

    return float(roll_out(world, act).success.float().mean())


def demonstrations(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """What the expert did in n episodes, on a random side in each: observations [m, o, 6], and its next actions [m, h, 2].

    Failed episodes are left out, and so is what comes after the goal.
    """
    world = World.sample(n, generator)
    side = torch.randint(2, (n,), generator=generator) * 2.0 - 1
    driven = roll_out(world, expert(side))
    begun = driven.positions[:-HORIZON]
    seen = torch.stack([world.observe(position) for position in begun])
    observations = torch.stack([torch.cat([seen[:1], seen[:-1]]), seen], 2)
    actions = driven.actions.unfold(0, HORIZON, 1)[: len(begun)].transpose(2, 3)
    under_way = torch.stack([driven.success & ~world.reached(position) for position in begun])
    return observations[under_way], actions[under_way]


def _size(vectors: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(vectors, dim=1)
    return size


def _unit(vectors: Tensor) -> Tensor:
    return vectors / _size(vectors).clamp_min(1e-6).unsqueeze(1)
