"""Timetables: how far each tick lies from pure noise, wherever the run begins."""

import math
from collections.abc import Sequence

import pytest
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler

from diffcache.noise_schedulers.influence import Influence
from diffcache.noise_schedulers.levels import Level, levels_of, levels_of_loop
from diffcache.noise_schedulers.timetable import Timetable, timetable_of


def turned(levels: Sequence[Level], first: int = 0) -> list[float | None]:
    return [moment.turned for moment in Timetable(len(levels) - first, levels, first=first).moments]


def of_stable_diffusion() -> list[Level]:
    noise_scheduler = DDIMScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012)
    noise_scheduler.set_timesteps(10)
    return levels_of(noise_scheduler)


def of_a_flow() -> list[Level]:
    noise_scheduler = FlowMatchEulerDiscreteScheduler()
    noise_scheduler.set_timesteps(sigmas=[0.6, 0.4, 0.2])
    return levels_of(noise_scheduler)


def test_a_run_turns_away_from_the_noise_with_which_its_noise_scheduler_begins() -> None:
    levels = of_stable_diffusion()
    angles = [level.angle or 0 for level in levels]
    assert 1.4 < angles[0] < 1.5  # not pi / 2
    assert turned(levels) == pytest.approx([angles[0] - angle for angle in angles])


def test_image_to_image_begins_some_way_from_pure_noise() -> None:
    levels = of_stable_diffusion()
    assert turned(levels, first=4) == turned(levels)[4:]
    assert turned(levels, first=4)[0] == pytest.approx((levels[0].angle or 0) - (levels[4].angle or 0))


@pytest.mark.parametrize("levels", [of_a_flow(), levels_of_loop(None, [0.6, 0.4, 0.2])])
def test_a_flow_whose_noise_levels_begin_low_begins_with_a_picture(levels: list[Level]) -> None:
    assert turned(levels)[0] == pytest.approx(math.pi / 2 - math.atan2(0.6, 0.4))


def test_other_loops_are_taken_to_begin_with_pure_noise() -> None:
    assert turned(levels_of_loop(None, [14.6, 3.0, 0.1]))[0] == 0


def test_nothing_is_said_where_angles_are_unknown() -> None:
    assert turned([Level(), Level()]) == [None, None]


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
def test_velocities_have_the_ratio_of_their_influence_on_the_result(prediction: str) -> None:
    noise_scheduler = DDIMScheduler(prediction_type=prediction, clip_sample=False)
    noise_scheduler.set_timesteps(10)
    times = timetable_of(noise_scheduler, None, Influence(noise_scheduler, levels_of(noise_scheduler)))
    influence = times.run_influence()
    assert influence is not None
    on_result = influence[-1]
    assert times.velocity_ratio(3, 6) == pytest.approx(on_result[3] / on_result[6])
    assert times.velocity_ratio(3, 6) != pytest.approx(times.ratio(3, 6))


def test_velocities_of_unknown_influence_have_no_ratio() -> None:
    times = timetable_of(FlowMatchEulerDiscreteScheduler(), None, None)
    assert times.velocity_ratio(0, 1) is None
