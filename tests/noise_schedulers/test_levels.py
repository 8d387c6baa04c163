"""Levels: against what the noise schedulers themselves make of signal, noise and predictions."""

from __future__ import annotations

import math
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor, nn

from diffcache import accelerate, denoising_run, report
from diffcache.noise_schedulers.levels import SMALLEST, VELOCITY, Level, levels_of, levels_of_loop

STEPS = 9
SCHEDULERS: dict[str, dict[str, Any]] = {
    "DDIMScheduler": {},
    "PNDMScheduler": {"skip_prk_steps": True},
    "EulerDiscreteScheduler": {"timestep_spacing": "leading"},
    "DPMSolverMultistepScheduler": {"timestep_spacing": "trailing"},
    "UniPCMultistepScheduler": {},
    "UniPCMultistepScheduler ": {"use_flow_sigmas": True, "prediction_type": "flow_prediction"},
    "FlowMatchEulerDiscreteScheduler": {"shift": 3.0},
    "HeunDiscreteScheduler": {},
    "EDMEulerScheduler": {"sigma_data": 0.7},
}
"""Those with `add_noise`, at timesteps that it knows."""


def made(name: str, **options: Any) -> Any:
    noise_scheduler = getattr(diffusers, name.strip())(**{**SCHEDULERS.get(name, {}), **options})
    noise_scheduler.set_timesteps(STEPS)
    return noise_scheduler


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_angle_is_that_of_the_noise_schedulers_own_mixture(name: str) -> None:
    noise_scheduler = made(name)
    if hasattr(noise_scheduler, "set_begin_index"):
        noise_scheduler.set_begin_index(0)
    clean, noise = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)
    level, time = levels_of(noise_scheduler)[0], noise_scheduler.timesteps[:1]
    if "FlowMatch" in name:
        signal = noise_scheduler.scale_noise(clean, time, noise)
        given = noise_scheduler.scale_noise(noise, time, clean)
    else:
        signal = noise_scheduler.add_noise(clean, noise, time)
        given = noise_scheduler.add_noise(noise, clean, time)
    if name == "EDMEulerScheduler":  # its unit of signal is sigma_data
        signal = 0.7 * signal
    assert level.angle == pytest.approx(math.atan2(float(given), float(signal)), abs=1e-4)


@pytest.mark.parametrize("name", ["DDIMScheduler", "DPMSolverMultistepScheduler", "UniPCMultistepScheduler"])
@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
def test_outputs_that_follow_from_one_velocity_lead_to_one_result(name: str, prediction: str) -> None:
    def result(prediction: str) -> Tensor:
        noise_scheduler = made(
            name, prediction_type=prediction, **({"clip_sample": False} if name[1] == "D" else {})
        )
        sample = torch.full((1, 1, 2, 2), 0.3, dtype=torch.float64)
        for level, time in zip(levels_of(noise_scheduler), noise_scheduler.timesteps, strict=True):
            output = (
                level.parametrisation.of_velocity * torch.full_like(sample, 0.2)
                + level.parametrisation.of_input * sample
            )
            sample = noise_scheduler.step(output, time, sample)[0]
        return sample

    torch.testing.assert_close(result(prediction), result("v_prediction"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
def test_the_velocity_is_noise_less_clean_sample_whatever_is_predicted(prediction: str) -> None:
    noise_scheduler = made("DDPMScheduler", prediction_type=prediction)
    clean, noise = torch.tensor([[0.3]], dtype=torch.float64), torch.tensor([[-1.7]], dtype=torch.float64)
    for level, time in zip(levels_of(noise_scheduler), noise_scheduler.timesteps[:, None], strict=True):
        predicted = {
            "epsilon": noise,
            "sample": clean,
            "v_prediction": noise_scheduler.get_velocity(clean, noise, time),
        }[prediction]
        of_velocity, of_input = level.parametrisation
        made_of_it = of_velocity * (noise - clean) + of_input * noise_scheduler.add_noise(clean, noise, time)
        torch.testing.assert_close(made_of_it, predicted, rtol=1e-5, atol=1e-5)


def test_with_zero_terminal_snr_the_run_begins_at_a_right_angle() -> None:
    noise_scheduler = made(
        "DDIMScheduler",
        rescale_betas_zero_snr=True,
        timestep_spacing="trailing",
        prediction_type="v_prediction",
    )
    first, *others = levels_of(noise_scheduler)
    assert first.sigma is None
    assert first.angle == pytest.approx(math.pi / 2)
    assert all(0 < (level.angle or 0) < math.pi / 2 for level in others)


def test_no_output_is_divided_by_nothing() -> None:
    noise_scheduler = made("DDIMScheduler", rescale_betas_zero_snr=True, timestep_spacing="trailing")
    assert levels_of(noise_scheduler)[0].parametrisation.of_velocity == SMALLEST


def test_inverted_sigmas_are_shares_of_signal_and_outputs_are_negative_velocities() -> None:
    """Mochi's. Its steps have to lead where those of plain sigmas lead."""
    plain, mirrored = (
        made("FlowMatchEulerDiscreteScheduler"),
        made("FlowMatchEulerDiscreteScheduler", invert_sigmas=True),
    )
    for level, other in zip(levels_of(plain), levels_of(mirrored), strict=True):
        assert other.sigma == pytest.approx(1 - (level.sigma or 0), abs=1e-6)
        assert (other.angle, other.turned) == pytest.approx((level.angle, level.turned), abs=1e-6)
        assert other.parametrisation == level.parametrisation._replace(of_velocity=-1.0)


@pytest.mark.parametrize("name", ["EDMEulerScheduler", "EDMDPMSolverMultistepScheduler"])
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_inside_edms_preconditioning_the_output_has_the_sign_that_the_noise_scheduler_gives_it(
    name: str, prediction: str
) -> None:
    """A velocity is noise - clean: a larger one predicts a smaller clean sample."""
    noise_scheduler = made(name, prediction_type=prediction, sigma_data=0.5)
    sample = torch.zeros(1, 1, 1, 1)
    for level, sigma in zip(levels_of(noise_scheduler), noise_scheduler.sigmas, strict=False):
        output = level.parametrisation.of_velocity * torch.ones(1, 1, 1, 1)
        clean = noise_scheduler.precondition_outputs(sample, output, sigma)
        assert level.angle is not None
        share_of_noise = 1 / (1 + 1 / math.tan(level.angle))
        assert float(clean) == pytest.approx(-0.5 * share_of_noise, rel=1e-4)


class Mirrored(nn.Module):
    """Predicts noise - clean at times that fall, or clean - noise at times that rise."""

    def __init__(self, sign: int) -> None:
        super().__init__()
        self.sign = sign

    def forward(self, sample: Tensor, timestep: Tensor) -> Tensor:
        noise = timestep / 1000 if self.sign > 0 else 1 - timestep / 1000
        return self.sign * (torch.sin(3 * sample) + noise**2)


def test_a_run_with_inverted_sigmas_reuses_the_ticks_that_its_mirror_image_reuses() -> None:
    results, reports = [], []
    for sign in (1, -1):
        noise_scheduler = made("FlowMatchEulerDiscreteScheduler", invert_sigmas=sign < 0)
        noise_scheduler.set_timesteps(20)
        net = accelerate(Mirrored(sign).eval(), speedup=2)
        x = torch.linspace(-1, 1, 16).reshape(1, 4, 4)
        with torch.no_grad(), denoising_run(net, 20, noise_scheduler=noise_scheduler) as run:
            for i, t in enumerate(noise_scheduler.timesteps):
                run.begin_step(i)
                x = noise_scheduler.step(net(x, t), t, x)[0]
        results.append(x)
        reports.append(report(net))
    assert reports[0].computed_ticks == reports[1].computed_ticks
    assert reports[0].expected_error == pytest.approx(reports[1].expected_error, rel=1e-3)
    torch.testing.assert_close(results[0], results[1], atol=1e-4, rtol=0)


def test_a_loop_without_noise_scheduler_has_the_levels_that_it_is_given() -> None:
    assert levels_of_loop(None, None) == []
    flow, diffusion = levels_of_loop(None, torch.tensor([0.5])), levels_of_loop(None, [1.5, 1.0])
    assert flow == [Level(0.5, math.pi / 4, turned=math.pi / 4, is_flow=True)]
    most = math.atan(1.5)
    assert diffusion == [Level(1.5, most, turned=0.0), Level(1.0, math.pi / 4, turned=most - math.pi / 4)]
    assert all(level.parametrisation == VELOCITY for level in flow + diffusion)


def test_a_loops_own_noise_levels_stand_in_for_the_noise_schedulers() -> None:
    noise_scheduler = made("EulerDiscreteScheduler")
    known, given = levels_of(noise_scheduler), [float(9 - i) for i in range(STEPS)]
    levels = levels_of_loop(noise_scheduler, given)
    assert [level.sigma for level in levels] == given
    assert [level.parametrisation for level in levels] == [level.parametrisation for level in known]
