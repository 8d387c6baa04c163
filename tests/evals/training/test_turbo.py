"""Distillation to four steps: the teacher's trajectory, and the velocity that leads along it."""

from __future__ import annotations

import torch
from torch import Tensor

from diffcache.evals.training.distilling import mean_velocity, trajectory
from diffcache.evals.training.turbo import guided

SIGMAS = torch.tensor([1.0, 0.86, 0.6, 0.01, 0.0])
NOISE = torch.randn(3, 8, 4, 4, generator=torch.Generator().manual_seed(0))
ROWS = torch.arange(3)


def test_a_straight_trajectory_is_followed_to_its_end() -> None:
    pull = torch.ones_like(NOISE)
    path = trajectory(lambda latents, sigma, rows: pull, NOISE, ROWS, SIGMAS, (5, 8, 14, 1))
    for i, sigma in enumerate(SIGMAS):
        torch.testing.assert_close(path[:, i], NOISE + (sigma - 1) * pull)


def test_the_mean_velocity_leads_from_where_the_student_is_to_where_the_teacher_goes() -> None:
    path, begun = torch.randn(3, 5, 8, 4, 4), torch.randn(3, 8, 4, 4)
    step = torch.tensor([0, 1, 2])
    velocity = mean_velocity(path, begun, step, SIGMAS)
    size = (SIGMAS[step + 1] - SIGMAS[step])[:, None, None, None]
    torch.testing.assert_close(begun + size * velocity, path[ROWS, step + 1])


def test_a_very_small_step_learns_the_velocity_of_the_teacher() -> None:
    path, begun = torch.randn(3, 5, 8, 4, 4), torch.randn(3, 8, 4, 4)
    velocity = mean_velocity(path, begun, torch.tensor([3, 3, 3]), SIGMAS)
    torch.testing.assert_close(velocity, (path[:, 4] - path[:, 3]) / -0.01)


def test_guidance_is_that_of_the_pipelines() -> None:
    def answers(latents: Tensor, sigma: Tensor, rows: Tensor) -> Tensor:
        return rows.float().view(-1, 1, 1, 1).expand_as(latents)

    found = guided(answers, 4.5, empty=10)(NOISE, torch.full((3,), 0.5), ROWS)
    expected = 10 + 4.5 * (ROWS.float() - 10)
    torch.testing.assert_close(found[:, 0, 0, 0], expected)
