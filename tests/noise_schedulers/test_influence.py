"""Influence: against the noise schedulers themselves, with an output changed at one tick."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor

from diffcache.noise_schedulers.influence import Influence
from diffcache.noise_schedulers.levels import levels_of
from diffcache.noise_schedulers.quirks import sigmas_of, unit_of

STEPS = 12
SCHEDULERS: dict[str, dict[str, Any]] = {
    "FlowMatchEulerDiscreteScheduler": {"shift": 3.0},
    "FlowMatchHeunDiscreteScheduler": {},
    "EulerDiscreteScheduler": {"use_karras_sigmas": True},
    "DDIMScheduler": {"prediction_type": "v_prediction", "clip_sample": False},
    "DPMSolverMultistepScheduler": {"timestep_spacing": "trailing"},
    "DPMSolverMultistepScheduler ": {"use_karras_sigmas": True},
    "UniPCMultistepScheduler": {
        "use_flow_sigmas": True,
        "prediction_type": "flow_prediction",
        "flow_shift": 2.0,
    },
    "DDIMScheduler ": {"prediction_type": "sample", "clip_sample": False},
    "EDMEulerScheduler": {},
    "PNDMScheduler": {"skip_prk_steps": True},
    "HeunDiscreteScheduler": {},
}
each_scheduler = pytest.mark.parametrize("name", SCHEDULERS)


def made(name: str) -> Any:
    noise_scheduler = getattr(diffusers, name.strip())(**SCHEDULERS[name])
    noise_scheduler.set_timesteps(STEPS)
    return noise_scheduler


def answer(noise_scheduler: Any, seen: Tensor, sigma: float) -> Tensor:
    """Of a denoiser whose noise less clean sample is the same whatever it sees: both are then so much larger."""
    kind = noise_scheduler.config.get("prediction_type")
    if kind in (None, "flow_prediction"):
        return 0 * seen
    unit = unit_of(noise_scheduler)
    signal, noise = unit / math.hypot(unit, sigma), sigma / math.hypot(unit, sigma)
    larger = seen / (signal + noise)
    if "EDM" in type(noise_scheduler).__name__:  # predicts the negative velocity
        return (noise - signal) * larger
    return {"v_prediction": signal - noise}.get(kind, 1.0) * larger


def influence_of(name: str) -> Influence:
    return Influence(made(name), levels_of(made(name)))


@pytest.mark.parametrize("name", ["FlowMatchEulerDiscreteScheduler", "DPMSolverMultistepScheduler"])
def test_where_a_loop_begins_changes_no_influence(name: str) -> None:
    noise_scheduler = made(name)
    noise_scheduler.set_begin_index(3)
    found = Influence(noise_scheduler, levels_of(noise_scheduler))
    assert found.obstacle is None
    assert found.run(0, STEPS) == influence_of(name).run(0, STEPS) != []
    assert noise_scheduler.begin_index == 3


def result(name: str, changed: int | None = None) -> Tensor:
    """Of a loop over given outputs and such answers, with one of them changed."""
    return inputs_and_result(name, changed)[-1]


def inputs_and_result(name: str, changed: int | None = None) -> list[Tensor]:
    """What the denoiser gets at each timestep of that loop, and the result, where clean samples have a standard deviation of one."""
    noise_scheduler, generator = made(name), torch.Generator().manual_seed(0)
    sigmas = sigmas_of(noise_scheduler)
    assert sigmas is not None
    outputs = torch.randn(
        len(noise_scheduler.timesteps), 1, 1, 2, 2, generator=generator, dtype=torch.float64
    )
    sample = torch.randn(1, 1, 2, 2, generator=generator, dtype=torch.float64)
    if changed is not None:
        outputs[changed] += 1
    seen = []
    for time, output, sigma in zip(noise_scheduler.timesteps, outputs, sigmas, strict=True):
        scaled = getattr(noise_scheduler, "scale_model_input", lambda x, t: x)
        seen.append(scaled(sample, time).double())
        answered = answer(noise_scheduler, seen[-1], sigma)
        sample = noise_scheduler.step(output + answered, time, sample)[0].double()
    return [*seen, sample / unit_of(noise_scheduler)]


@each_scheduler
def test_ratios_are_those_of_the_noise_scheduler_itself(name: str) -> None:
    influence, before = influence_of(name), result(name)
    for tick, to in ((2, 3), (5, 7), (len(made(name).timesteps) - 3, len(made(name).timesteps) - 1)):
        moved, measured = (float((result(name, index) - before).mean()) for index in (tick, to))
        expected = pytest.approx(moved / measured, rel=2e-3) if measured else None
        assert influence.ratio(tick, to) == expected, (tick, to)
    assert influence.obstacle is None


@each_scheduler
def test_inputs_change_as_those_of_the_noise_scheduler_itself(name: str) -> None:
    count, changed, before = len(made(name).timesteps), 3, inputs_and_result(name)
    found = influence_of(name).run(0, count)
    assert (len(found), {len(row) for row in found}) == (count + 1, {count})
    moved = [
        float((now - then).mean()) for now, then in zip(inputs_and_result(name, changed), before, strict=True)
    ]
    largest = max(map(abs, moved))
    assert [row[changed] for row in found] == pytest.approx(moved, rel=2e-3, abs=1e-4 * largest)


TURNING: dict[str, dict[str, Any]] = {
    "DDIMScheduler": {"prediction_type": "sample"},
    "DDIMInverseScheduler": {},
    "EDMEulerScheduler": {},
    "EDMDPMSolverMultistepScheduler": {},
    "EDMDPMSolverMultistepScheduler ": {"prediction_type": "v_prediction"},
    "FlowMatchEulerDiscreteScheduler": {"invert_sigmas": True},
    "MiniMaxH3Scheduler": {},
}
"""Noise schedulers that turn from noise to data, or the other way, with outputs of either sign."""


@pytest.mark.parametrize("name", TURNING)
def test_a_velocity_moves_the_input_as_the_angle_turns(name: str) -> None:
    if not hasattr(diffusers, name.strip()):
        pytest.skip("this version of Diffusers does not have it")
    noise_scheduler = getattr(diffusers, name.strip())(
        **{"clip_sample": False} if "DDIM" in name else {}, **TURNING[name]
    )
    noise_scheduler.set_timesteps(STEPS)
    levels = levels_of(noise_scheduler)
    found = Influence(noise_scheduler, levels).run(0, len(levels))
    for tick, (level, after) in enumerate(pairwise(levels)):
        turn = (after.angle or 0.0) - (level.angle or 0.0)
        assert found[tick + 1][tick] * level.parametrisation.of_velocity * turn > 0, tick


def test_the_result_is_measured_in_the_standard_deviation_of_clean_samples() -> None:
    """With another `sigma_data`, and all noise levels in proportion, the denoiser sees the same, and makes the same of it."""

    def found(sigma_data: float) -> list[list[float]]:
        noise_scheduler = diffusers.EDMEulerScheduler(
            sigma_data=sigma_data, sigma_min=0.01 * sigma_data, sigma_max=50 * sigma_data
        )
        noise_scheduler.set_timesteps(STEPS)
        return Influence(noise_scheduler, levels_of(noise_scheduler)).run(0, STEPS)

    for row, other in zip(found(1.0), found(0.5), strict=True):
        assert row == pytest.approx(other, rel=1e-3, abs=1e-6)


def test_a_run_that_begins_later_has_the_influence_of_its_part() -> None:
    influence = influence_of("DPMSolverMultistepScheduler")
    whole, part = influence.run(0, STEPS), influence.run(3, STEPS - 3)
    assert part == [row[3:] for row in whole[3:]]
    assert influence.run(3, STEPS - 2) == []


@each_scheduler
def test_the_noise_scheduler_and_the_generator_are_left_alone(name: str) -> None:
    noise_scheduler = made(name)
    before, state = {key: repr(value) for key, value in vars(noise_scheduler).items()}, torch.get_rng_state()
    assert Influence(noise_scheduler, levels_of(noise_scheduler)).ratio(2, 3) is not None
    assert {key: repr(value) for key, value in vars(noise_scheduler).items()} == before
    assert torch.equal(torch.get_rng_state(), state)


def test_a_wrapped_step_is_not_called() -> None:
    noise_scheduler, calls = made("DDIMScheduler"), []
    noise_scheduler.step = lambda *args, **kwargs: calls.append(args)
    assert Influence(noise_scheduler).ratio(2, 3) is not None
    assert not calls


@pytest.mark.parametrize(
    ("limit", "why"),
    [({"clip_sample": True}, "clips"), ({"clip_sample": False, "thresholding": True}, "limits")],
)
def test_limited_samples_are_an_obstacle(limit: dict[str, bool], why: str) -> None:
    limited, plain = diffusers.DDIMScheduler(**limit), diffusers.DDIMScheduler(clip_sample=False)
    found = []
    for noise_scheduler in (limited, plain):
        noise_scheduler.set_timesteps(STEPS)
        found.append(Influence(noise_scheduler, levels_of(noise_scheduler)))
    assert str(found[0].obstacle).startswith(f"DDIMScheduler {why} predicted samples")
    assert found[0].ratio(2, 3) is None
    assert found[1].ratio(2, 3) is not None


def clipping(limit: float) -> Any:
    noise_scheduler = diffusers.DDIMScheduler(clip_sample_range=limit, prediction_type="v_prediction")
    noise_scheduler.set_timesteps(STEPS)
    return noise_scheduler


def test_where_one_sample_in_five_is_clipped_outputs_move_samples_further() -> None:
    """A clipped element moves by the output's part in the noise, signal * next noise; any other by the sine of the turn."""
    noise_scheduler, name = clipping(1.0), "DDIMScheduler"
    levels, plain = levels_of(noise_scheduler), influence_of(name).run(0, STEPS)
    found = Influence(noise_scheduler, levels_of(noise_scheduler)).clipped_run(0, STEPS, 1.0)
    assert (len(found), {len(row) for row in found}) == (STEPS + 1, {STEPS})
    shares = []
    for tick in range(STEPS - 1):
        now, following = (levels[i].angle or 0.0 for i in (tick, tick + 1))
        moved = (math.cos(now) * math.sin(following)) ** 2
        unclipped = plain[tick + 1][tick] ** 2
        shares.append((found[tick + 1][tick] ** 2 - unclipped) / (moved - unclipped))
        assert found[tick + 1][tick] * plain[tick + 1][tick] > 0
        assert found[tick][tick] == pytest.approx(0, abs=1e-9)
    assert min(shares) > 0.1
    assert max(shares) < 0.3


def test_where_hardly_any_sample_is_clipped_outputs_move_samples_as_they_do_without_clipping() -> None:
    found = Influence(clipping(4.0), levels_of(clipping(4.0))).clipped_run(0, STEPS, 1.0)
    plain = influence_of("DDIMScheduler").run(0, STEPS)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(plain), rtol=1e-6, atol=1e-9)


def test_guidance_has_more_samples_clipped_near_pure_noise() -> None:
    influence = Influence(clipping(2.0), levels_of(clipping(2.0)))
    plain, guided = (influence.clipped_run(0, STEPS, scale) for scale in (1.0, 5.0))
    assert abs(guided[4][3]) > 1.1 * abs(plain[4][3])
    assert guided[-1][-1] == pytest.approx(plain[-1][-1], rel=0.01)


def test_nothing_is_said_of_clipping_where_there_is_none_or_levels_are_unknown() -> None:
    assert influence_of("DDIMScheduler").clipped_run(0, STEPS, 1.0) == []
    assert Influence(clipping(1.0)).clipped_run(0, STEPS, 1.0) == []
    noisy = diffusers.DDPMScheduler()
    noisy.set_timesteps(STEPS)
    assert Influence(noisy, levels_of(noisy)).clipped_run(0, STEPS, 1.0) == []


def test_numbers_that_are_not_finite_are_an_obstacle() -> None:
    noise_scheduler = made("EulerDiscreteScheduler")
    noise_scheduler.sigmas[0] = torch.inf  # as with zero terminal SNR and no rescaling
    influence = Influence(noise_scheduler, levels_of(made("EulerDiscreteScheduler")))
    assert "not finite" in str(influence.obstacle)
    assert influence.ratio(2, 3) is None
    assert influence.run(0, STEPS) == []


def test_indices_outside_the_list_have_no_ratio() -> None:
    influence = Influence(made("DDIMScheduler"))
    assert influence.ratio(STEPS, 1) is None
    assert influence.ratio(1, -1) is None


@pytest.mark.parametrize("name", ["EulerAncestralDiscreteScheduler", "LCMScheduler", "DDPMScheduler"])
def test_added_noise_is_an_obstacle(name: str) -> None:
    noise_scheduler = getattr(diffusers, name)()
    noise_scheduler.set_timesteps(STEPS)
    influence = Influence(noise_scheduler)
    assert influence.ratio(2, 3) is None
    assert influence.obstacle == f"{name} adds noise at its steps"


def test_a_step_that_draws_and_fails_leaves_the_generator_alone() -> None:
    noise_scheduler = diffusers.DDPMWuerstchenScheduler()  # it has one time more than steps
    noise_scheduler.set_timesteps(STEPS)
    state = torch.get_rng_state()
    assert Influence(noise_scheduler).obstacle == "DDPMWuerstchenScheduler adds noise at its steps"
    assert torch.equal(torch.get_rng_state(), state)


def test_a_step_that_asks_for_more_is_an_obstacle() -> None:
    noise_scheduler = diffusers.CogVideoXDPMScheduler()
    noise_scheduler.set_timesteps(STEPS)
    influence = Influence(noise_scheduler)
    assert influence.ratio(1, 2) is None
    assert influence.obstacle is not None
    assert "CogVideoXDPMScheduler" in influence.obstacle


def test_options_that_a_noise_scheduler_does_not_ask_for_are_no_obstacle() -> None:
    """`from_config` keeps those of the class before, and some classes have options that their steps ignore."""
    clips = diffusers.DDPMScheduler(clip_sample=True, thresholding=True).config
    swapped = diffusers.EulerDiscreteScheduler.from_config(clips)
    assert swapped.config.clip_sample
    for noise_scheduler in (swapped, diffusers.CogVideoXDDIMScheduler(clip_sample=True)):
        noise_scheduler.set_timesteps(STEPS)
        influence = Influence(noise_scheduler, levels_of(noise_scheduler))
        assert influence.obstacle is None
        assert not influence.clips
