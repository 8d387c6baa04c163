"""A denoiser whose response is known is measured to have it; from sketches too, within the error that is stated."""

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import Tensor, nn

from diffcache import denoising_run
from diffcache.host.rows import is_doubled
from diffcache.profiling.recording import trajectories
from diffcache.profiling.recording.covariance import covariance_of
from diffcache.profiling.recording.guided import guided, passes
from diffcache.profiling.recording.loops import Loop
from diffcache.profiling.recording.response import response_of
from diffcache.schedulers.guidance import Guidance

TICKS, RESPONSE, SCALE = 12, 2.5, 3.0
CALLS = [{"seed": 0}, {"seed": 1}]


class Linear(nn.Module):
    """Its velocity is so many times the sample, plus something that changes with time."""

    def forward(self, hidden_states: Tensor, timestep: Tensor) -> Tensor:
        return RESPONSE * hidden_states + torch.sin(timestep / 300)


class TwoPasses(nn.Module):
    """In each batch of two the conditional half, the second one, responds twice as strongly."""

    def forward(self, hidden_states: Tensor, timestep: Tensor) -> Tensor:
        first, second = hidden_states.chunk(2)
        return torch.cat([first, 2 * second]) + torch.sin(timestep / 300)


class Uneven(nn.Module):
    """Each channel responds by itself: so there is a spread."""

    def forward(self, hidden_states: Tensor, timestep: Tensor) -> Tensor:
        responses = torch.tensor([-1.0, 0.5, 2.0, 4.0])[:, None, None]
        return responses * hidden_states + torch.sin(timestep / 300)


def looped(net: nn.Module, seed: int, guidance_scale: float | None = None) -> Tensor:
    schedule = FlowMatchEulerDiscreteScheduler()
    schedule.set_timesteps(TICKS)
    sample = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad(), denoising_run(net, num_steps=TICKS, noise_scheduler=schedule) as run:
        for tick, time in enumerate(schedule.timesteps):
            run.begin_step(tick)
            velocity = net(sample if guidance_scale is None else sample.repeat(2, 1, 1, 1), time)
            if guidance_scale is not None:
                first, second = velocity.chunk(2)
                velocity = first + guidance_scale * (second - first)
            sample = schedule.step(velocity, time, sample).prev_sample
    return sample.clamp(0, 1)


def test_a_linear_denoiser_answers_all_errors_alike() -> None:
    found = response_of(Loop(Linear().eval(), looped), CALLS)
    assert found.factors.shape == (2, TICKS)
    assert found.mean == pytest.approx(RESPONSE, rel=1e-3)
    assert found.spread == pytest.approx(np.zeros(TICKS), abs=5e-2 * abs(RESPONSE))


def test_sketches_show_the_response_within_the_error_that_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four standard errors, of sketches that are a quarter as large as the samples; which a sketch of their own size takes exactly."""
    size, loop = 128, Loop(Uneven().eval(), looped)
    mean, spread = response_of(loop, CALLS).factors
    monkeypatch.setattr(trajectories, "SIZE", size)
    its_mean, its_spread = response_of(loop, CALLS).factors
    assert not np.array_equal(its_mean, mean)
    assert np.all(np.abs(its_mean - mean) < 4 * size**-0.5 * np.hypot(mean, spread))
    assert np.all(np.abs(its_spread - spread) < 4 * size**-0.5 * spread)


def test_a_sketch_answers_as_its_feature_does_where_all_errors_are_answered_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trajectories, "SIZE", 32)
    mean = response_of(Loop(Linear().eval(), looped), CALLS).mean
    assert mean == pytest.approx(RESPONSE, rel=1e-3)


def test_guidance_is_part_of_the_response_and_of_the_covariance() -> None:
    loop, calls = Loop(TwoPasses().eval(), looped), [{**call, "guidance_scale": SCALE} for call in CALLS]
    assert response_of(loop, calls).mean == pytest.approx(1 + SCALE * (2 - 1), rel=1e-3)
    found = covariance_of(loop, calls).matrix
    samples = [
        torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(call["seed"])) for call in CALLS
    ]
    start = torch.stack([(1 + SCALE) * sample + torch.sin(torch.tensor(1000 / 300)) for sample in samples])
    assert found[0, 0] == pytest.approx(float(start.square().mean()), rel=1e-4)


def test_two_passes_are_told_apart_by_their_place_in_a_batch_or_by_their_name() -> None:
    conditional, other = torch.full((2, 3), 5.0), torch.full((2, 3), 1.0)
    for outputs, doubled, first in (
        ({"0": torch.cat([other, conditional])}, True, False),
        ({"0": torch.cat([conditional, other])}, True, True),
        ({"uncond": other, "cond": conditional}, False, False),
    ):
        found = passes(outputs, doubled, first)
        assert torch.equal(found[0], conditional)
        assert torch.equal(found[1], other)
        (velocity,) = guided(found, Guidance(SCALE))
        assert torch.equal(velocity, torch.full((2, 3), 1 + SCALE * 4))


def test_what_is_not_two_passes_is_left_as_it_is() -> None:
    three = tuple(torch.full((2,), float(i)) for i in range(3))
    assert guided(three, Guidance(SCALE)) is three
    assert is_doubled(torch.ones(4, 2))
    assert not is_doubled(torch.arange(4.0)[:, None])
    assert not is_doubled(torch.ones(3, 2))
