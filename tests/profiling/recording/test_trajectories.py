"""Runs that show a denoiser's covariance and response: each is an entry of the journal, and is rendered once for both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from support.searches.flux_calls import FLUX, flux_calls
from torch import Tensor, nn
from zoo.pipelines import CASES

from diffcache import denoising_run
from diffcache.profiling.recording import trajectories
from diffcache.profiling.recording.calling import accelerated
from diffcache.profiling.recording.covariance import covariance_of
from diffcache.profiling.recording.journal import Journal, journaling
from diffcache.profiling.recording.loops import Loop
from diffcache.profiling.recording.response import response_of
from diffcache.profiling.recording.trajectories import FULL
from diffcache.profiling.recording.velocities import NotMeasurable, Velocities, trajectory_of
from diffcache.schedulers.errors import TargetError

STEPS, ANSWERING = 6, 2
THREE_PASSES = CASES["LTX2Pipeline-three-passes"]


def counted() -> tuple[Any, list[int]]:
    """A pipeline that counts its calls."""
    pipe, renders = FLUX.build(), [0]

    class Counted(type(pipe)):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            renders[0] += 1
            return super().__call__(*args, **kwargs)

    pipe.__class__ = Counted
    return pipe, renders


def test_a_full_run_is_rendered_once_for_both_and_each_render_is_an_entry(tmp_path: Path) -> None:
    (pipe, renders), calls = counted(), flux_calls(STEPS, 3)
    with journaling(Journal(tmp_path)):
        first = covariance_of(pipe, calls)
        assert renders[0] == len(calls)
        response = response_of(pipe, calls[:ANSWERING])
        assert renders[0] == len(list(tmp_path.iterdir())) == len(calls) + ANSWERING
        assert (covariance_of(pipe, calls).matrix == first.matrix).all()
        assert (response_of(pipe, calls[:ANSWERING]).factors == response.factors).all()
        assert renders[0] == len(calls) + ANSWERING


def test_runs_of_another_velocity_are_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pipe, renders), calls = counted(), flux_calls(STEPS, 1)
    with journaling(Journal(tmp_path)):
        response_of(pipe, calls)
        monkeypatch.setattr(trajectories, "MODELLED", "another")
        response_of(pipe, calls)
    assert renders[0] == 2 * 2


def test_the_journal_changes_nothing(tmp_path: Path) -> None:
    pipe, calls = FLUX.build(), flux_calls(STEPS, 2)
    with journaling(Journal(tmp_path)):
        covariance, response = covariance_of(pipe, calls), response_of(pipe, calls)
    assert (covariance_of(pipe, calls).matrix == covariance.matrix).all()
    assert (response_of(pipe, calls).factors == response.factors).all()


class Answering(nn.Module):
    """Its velocity bends in time, and with what it is conditioned on."""

    def __init__(self) -> None:
        super().__init__()
        self.lean = nn.Parameter(torch.tensor(0.3))

    def forward(self, sample: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        return self.lean * sample + torch.sin(3 * sample + time / 200) + 2 * condition * torch.cos(sample * 2)


def guided_loop(
    net: nn.Module, seed: int, way: str = "", outputs: list[Tensor] | None = None, **call: Any
) -> Tensor:
    """A hand-written loop with a guidance scale of 4; what its noise scheduler gets is noted."""
    schedule = FlowMatchEulerDiscreteScheduler()
    schedule.set_timesteps(STEPS)
    noisy, on, off = schedule.sigmas.tolist(), torch.ones(1), torch.zeros(1)
    known = {"sigmas": noisy[:-1]} if way == "own sampler" else {"noise_scheduler": schedule}
    sample = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad(), denoising_run(net, num_steps=STEPS, **known) as run:
        for tick, time in enumerate(schedule.timesteps):
            run.begin_step(tick)
            if way == "batched":
                both = torch.cat([off, on]).view(2, 1, 1, 1)
                u, c = net(torch.cat([sample, sample]), time, both).chunk(2)
            elif way == "conditional first":
                c, u = net(sample, time, on), net(sample, time, off)
            else:
                u, c = net(sample, time, off), net(sample, time, on)
            if outputs is not None:
                outputs.append(u + 4 * (c - u))
            if way == "own sampler":
                sample = sample + (noisy[tick + 1] - noisy[tick]) * (u + 4 * (c - u))
            else:
                sample = schedule.step(u + 4 * (c - u), time, sample).prev_sample
    return (sample / 4 + 0.5).clamp(0, 1)


@pytest.mark.parametrize("way", ["unconditional first", "conditional first", "batched"])
def test_of_a_loop_the_guided_velocity_is_measured(way: str) -> None:
    net, outputs = Answering().eval(), list[Tensor]()
    guided_loop(net, 1, way, outputs)
    flat = torch.stack([output.flatten() for output in outputs]).double()
    found = covariance_of(Loop(net, guided_loop), [{"seed": 1, "way": way}])
    expected = flat @ flat.T / flat.shape[1]
    assert torch.allclose(torch.from_numpy(found.matrix), expected, rtol=1e-4)
    assert found.amplification > 1.5


def test_a_loop_whose_sampler_hides_how_it_guides_is_not_measured() -> None:
    net = Answering().eval()
    with pytest.raises(NotMeasurable, match="do not show how its two guidance passes are combined"):
        covariance_of(Loop(net, guided_loop), [{"seed": 1, "way": "own sampler"}])


def test_runs_of_different_lengths_are_refused() -> None:
    pipe, calls = FLUX.build(), [*flux_calls(STEPS, 1), *flux_calls(STEPS + 1, 1)]
    for measured in (covariance_of, response_of):
        with pytest.raises(TargetError, match="give all of them as many steps"):
            measured(pipe, calls)


def test_a_denoiser_whose_samples_have_another_size_than_its_velocities_shows_no_response() -> None:
    """The passes of this pipeline are of different sizes."""
    pipe, calls = THREE_PASSES.build(), [THREE_PASSES.call(0, STEPS)]
    assert covariance_of(pipe, calls).matrix.shape == (STEPS, STEPS)
    assert response_of(pipe, calls) is None


@pytest.mark.parametrize("second", [None, 2.0, 0.0])
def test_the_second_denoiser_has_a_scale_of_guidance_of_its_own(second: float | None) -> None:
    case, steps = CASES["WanPipeline-two-experts"], 8
    pipe, call = case.build(), {**case.call(0, 8), "guidance_scale": 5.0, "guidance_scale_2": second}
    with accelerated(pipe, FULL):
        run = trajectory_of(pipe, call, Velocities())
    (handover,) = run.handovers
    assert 0 < handover < steps
    later = 5.0 if second is None else second
    assert [guidance.scale for guidance in run.guidance] == [5.0] * handover + [later] * (steps - handover)


@pytest.mark.parametrize("name", ["StableDiffusion3Pipeline", "Lumina2Pipeline", "QwenImagePipeline"])
def test_velocities_are_those_that_the_noise_scheduler_gets(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The norm of the conditional pass is kept where the pipeline keeps it."""
    case, steps, got = CASES[name], 4, list[Tensor]()
    pipe = case.build()
    kind = type(pipe.scheduler)
    real = kind.step

    def step(self: Any, model_output: Tensor, *args: Any, **kwargs: Any) -> Any:
        if model_output.numel() > 1:  # noise schedulers are tried on single numbers before
            got.append(model_output.clone())
        return real(self, model_output, *args, **kwargs)

    monkeypatch.setattr(kind, "step", step)
    scale = "true_cfg_scale" if name.startswith("Qwen") else "guidance_scale"
    with accelerated(pipe, FULL):
        run = trajectory_of(pipe, {**case.call(0, steps), scale: 6.0}, Velocities())
    assert [len(passes) for passes in run.passes] == [2] * steps
    for (velocity,), output in zip(run.velocities, got, strict=True):
        torch.testing.assert_close(velocity.abs(), output.abs(), rtol=1e-3, atol=1e-4)
