"""Hindsight where predicted samples are clipped: the noise scheduler's steps are made again."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, HeunDiscreteScheduler
from support.toys import ToyDenoiser, ToyPipeline, by_embeds
from torch import Tensor
from zoo.pipelines import CASES

from diffcache import accelerate, denoising_run, plan, report, restore
from diffcache.engine.observers import Observer, observed
from diffcache.engine.retracing import REPLACED, Retracing
from diffcache.noise_schedulers.influence import Influence
from diffcache.noise_schedulers.levels import levels_of
from diffcache.noise_schedulers.step_calls import StepCall
from diffcache.noise_schedulers.timetable import Timetable, timetable_of
from diffcache.prediction.predictors import Polynomial
from diffcache.reports.records import TickCalls
from diffcache.schedulers.steps import Decision
from diffcache.store.formats import format_of
from diffcache.store.rings import StoreSetup

STEPS = 12
COMPUTED = (0, 1, 2, 5, 8)
COMPUTES, REUSES = (TickCalls((), frozenset({decision})) for decision in (Decision.COMPUTE, Decision.PREDICT))


class Loop:
    """A loop in which the velocity is a parabola in the angle, whatever the sample is. At ticks that are not computed it is 0."""

    def __init__(
        self, noise_scheduler: Any, computed: Collection[int] = range(STEPS), *, bends: bool = True
    ) -> None:
        noise_scheduler.set_timesteps(STEPS)
        self.noise_scheduler, self.computed, self.bends = noise_scheduler, computed, bends
        influence = Influence(noise_scheduler, levels_of(noise_scheduler))
        self.timetable: Timetable = timetable_of(noise_scheduler, None, influence)
        setup = StoreSetup(Polynomial(2, "angle"), format_of(None), self.timetable, hindsight=True)
        self.retracing = Retracing(self.timetable, setup)
        self.sample = torch.linspace(-2, 2, 8).reshape(1, 1, 2, 4) * noise_scheduler.init_noise_sigma
        self.tick = 0

    def call(self) -> StepCall:
        time = self.noise_scheduler.timesteps[self.tick]
        angle, (of_velocity, of_input) = (
            self.timetable.moment(self.tick).angle or 0.0,
            self.timetable.parametrisation(self.tick),
        )
        velocity = torch.linspace(-3, 4, 8).reshape(1, 1, 2, 4) * (
            0.5 + self.bends * (angle - 0.4 * angle**2)
        )
        if self.tick not in self.computed:
            velocity = 0 * velocity
        seen = self.noise_scheduler.scale_model_input(self.sample, time)
        return StepCall(of_velocity * velocity + of_input * seen, time, self.sample, {})

    def step(self) -> tuple[StepCall, StepCall]:
        """Returns the call as it was given, and as it was made."""
        given = self.call()
        passes = COMPUTES if self.tick in self.computed else REUSES
        made = self.retracing.stepping(self.noise_scheduler, self.tick, given, passes)
        self.sample = made.made_by(self.noise_scheduler)
        self.retracing.stepped(self.sample)
        self.tick += 1
        return given, made

    def until(self, tick: int) -> Loop:
        while self.tick < tick:
            self.step()
        return self


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
def test_the_sample_of_the_next_computed_tick_is_that_of_the_full_run(prediction: str) -> None:
    full = Loop(DDIMScheduler(prediction_type=prediction)).until(5)
    reusing = Loop(DDIMScheduler(prediction_type=prediction), COMPUTED).until(5)
    given, made = reusing.step()
    assert (given.sample - full.sample).abs().max() > 0.1
    torch.testing.assert_close(made.sample, full.sample, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
def test_the_clean_sample_that_the_denoiser_predicts_is_kept(prediction: str) -> None:
    noise_scheduler = DDIMScheduler(prediction_type=prediction, clip_sample_range=100.0)
    given, made = Loop(noise_scheduler, COMPUTED).until(5).step()
    clean = [
        DDIMScheduler.step(noise_scheduler, **call.arguments).pred_original_sample for call in (given, made)
    ]
    torch.testing.assert_close(*clean, rtol=1e-3, atol=1e-4)
    assert not torch.equal(given.sample, made.sample)


def test_what_a_noise_scheduler_keeps_between_steps_is_that_of_the_steps_made_again() -> None:
    """Heun's keeps the first derivative and the sample for its second stage. Its stages repeat noise levels, so no velocity bends here."""

    def loop(computed: Collection[int]) -> Loop:
        return Loop(HeunDiscreteScheduler(clip_sample=True), computed, bends=False).until(13)

    full, reusing = loop(range(2 * STEPS)), loop((*range(9), 13))
    before = reusing.noise_scheduler.prev_derivative
    reusing.retracing.stepping(reusing.noise_scheduler, 13, reusing.call(), COMPUTES)
    for name in ("prev_derivative", "sample", "dt"):
        found, expected = getattr(reusing.noise_scheduler, name), getattr(full.noise_scheduler, name)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert (before - full.noise_scheduler.prev_derivative).abs().max() > 0.1


@pytest.mark.parametrize("how", ["another tensor", "written to"])
def test_latents_that_are_replaced_are_not_corrected(how: str) -> None:
    reusing = Loop(DDIMScheduler(), COMPUTED).until(4)
    if how == "written to":
        reusing.sample.mul_(1.0)
    else:
        reusing.sample = reusing.sample.clone()
    reusing.step()
    given, made = reusing.step()
    assert made is given
    assert reusing.retracing.obstacle == REPLACED
    reusing.until(8)
    given, made = reusing.step()
    assert made is not given
    assert reusing.retracing.obstacle is None


def test_the_start_and_the_computed_velocities_are_kept() -> None:
    reusing = Loop(DDIMScheduler(), COMPUTED).until(5)
    assert len([*reusing.retracing.tensors()]) == 2 + 2  # as many velocities as the curve takes
    reusing.retracing.forget()
    assert not [*reusing.retracing.tensors()]


def test_what_is_kept_has_no_format_of_features() -> None:
    reusing = Loop(DDIMScheduler(), COMPUTED).until(5)
    kept = [*reusing.retracing.tensors()]
    reusing.retracing.recode()
    assert kept
    assert all(map(torch.equal, kept, reusing.retracing.tensors()))


def test_samples_of_reused_ticks_are_not_kept() -> None:
    reusing = Loop(DDIMScheduler(), COMPUTED).until(4)
    sample = weakref.ref(reusing.sample)
    reusing.step()
    assert sample() is None


def test_outputs_from_before_another_guidance_are_not_compared() -> None:
    reusing = Loop(DDIMScheduler(), COMPUTED).until(5)
    reusing.timetable.guidance_changes(4)
    given, made = reusing.step()
    assert made is given


class Painter(ToyDenoiser):
    """Predicts a picture whose contrast grows, and that is partly there already."""

    def forward(
        self, hidden_states: Tensor, timestep: Tensor, encoder_hidden_states: Tensor
    ) -> tuple[Tensor]:  # type: ignore[override]
        contrast = encoder_hidden_states.mean(dim=(1, 2)) * (1 - (timestep / 1000) ** 2)
        return (contrast[:, None, None] * torch.linspace(-2, 2, 8).reshape(1, 2, 4) + 0.2 * hidden_states,)


def painting(**options: Any) -> ToyPipeline:
    pipe = ToyPipeline(Painter().eval(), DDIMScheduler(prediction_type="sample", **options))
    pipe.set_progress_bar_config(disable=True)
    return pipe


def painted(pipe: ToyPipeline, **options: Any) -> Tensor:
    latents = torch.linspace(-1.5, 2, 8).reshape(1, 2, 4)
    return pipe(by_embeds(cond=0.6, uncond=0.4), num_inference_steps=24, latents=latents, **options)


def held(pipe: Any, *, hindsight: bool = True) -> Any:
    return accelerate(pipe, "uniform", interval=4, warmup_steps=2, tail_steps=1, hindsight=hindsight)


@pytest.mark.parametrize("batched", [False, True], ids=["two calls", "one call"])
def test_a_run_comes_nearer_to_the_full_one(batched: bool) -> None:
    pipe = painting()
    full = painted(pipe, batched=batched)
    off = [
        (painted(held(pipe, hindsight=hindsight), batched=batched) - full).abs().mean()
        for hindsight in (True, False)
    ]
    assert 0 < off[0] < 0.5 * off[1]


def test_nothing_is_said_against_hindsight() -> None:
    pipe = held(painting())
    painted(pipe)
    assert not any("hindsight" in note for note in report(pipe).notes)


def test_a_run_that_computes_everything_is_left_as_it_is() -> None:
    pipe = painting()
    full = painted(pipe)
    assert torch.equal(painted(accelerate(pipe, "uniform", interval=1, hindsight=True)), full)


def test_a_schedule_of_such_a_run_gives_it_again() -> None:
    pipe = held(painting())
    corrected = painted(pipe)
    schedule = report(pipe).to_schedule()
    assert torch.equal(painted(accelerate(pipe, schedule)), corrected)
    assert torch.equal(
        painted(accelerate(pipe, schedule, hindsight=False)), painted(held(pipe, hindsight=False))
    )


def test_a_plan_knows_what_is_kept() -> None:
    case = CASES["DiTPipeline"]
    pipe = case.build()
    pipe.scheduler = DDIMScheduler()
    bytes_kept = []
    for hindsight in (True, False):
        held(pipe, hindsight=hindsight)
        foretold = plan(pipe, **case.call(0, STEPS))
        case.render(pipe, 0, STEPS)
        assert report(pipe).cache_bytes == foretold.cache_bytes
        bytes_kept.append(foretold.cache_bytes)
    assert bytes_kept[0] > bytes_kept[1]


class Onlooker(Observer):
    """Lets runs go on with what was computed."""

    shadow = True


def test_a_run_that_is_looked_at_goes_on_with_what_was_computed() -> None:
    pipe = painting()
    full = painted(pipe)
    held(pipe)
    with observed(Onlooker()):
        assert torch.equal(painted(pipe), full)


@pytest.mark.parametrize("eta", [0.0, 0.5])
def test_steps_that_add_noise_are_not_made_again(eta: float) -> None:
    case = CASES["StableDiffusionPipeline"]
    pipe = case.build()
    pipe.scheduler = DDIMScheduler()
    drawn = [case.render(held(pipe, hindsight=hindsight), 0, STEPS, eta=eta) for hindsight in (True, False)]
    assert torch.equal(*drawn) == (eta > 0)
    accelerate(pipe, "uniform", interval=4, warmup_steps=2, tail_steps=1, hindsight=True)
    case.render(pipe, 0, STEPS, eta=eta)
    assert any("no hindsight: DDIMScheduler with eta above 0" in note for note in report(pipe).notes) == (
        eta > 0
    )


def test_nothing_is_corrected_across_ticks_that_are_computed_in_part() -> None:
    """At every second tick one pass is reused."""
    pipe = held(painting())
    painted(pipe)
    schedule = report(pipe).to_schedule()
    rows = {"cond": "#" * 24, "uncond": "###" + "-#" * 10 + "#"}
    in_part = replace(schedule, table=dict.fromkeys(schedule.table, rows))
    assert torch.equal(
        *(painted(accelerate(pipe, in_part, hindsight=hindsight)) for hindsight in (True, False))
    )


def looped(net: Painter, noise_scheduler: DDIMScheduler, stepped: Any = None, **options: Any) -> Tensor:
    """What `painted` draws without guidance, in a loop of one's own."""
    noise_scheduler.set_timesteps(24)
    sample = torch.linspace(-1.5, 2, 8).reshape(1, 2, 4)
    embeds = by_embeds(cond=0.6)["cond"]
    with torch.no_grad(), denoising_run(net, 24, noise_scheduler=noise_scheduler) as run:
        for i, time in enumerate(noise_scheduler.timesteps):
            run.begin_step(i)
            output = net(sample, time.expand(1), **embeds)[0]
            sample = (stepped or noise_scheduler).step(output, time, sample, **options)[0]
    return sample


def test_in_a_loop_of_ones_own_steps_are_made_again_too() -> None:
    pipe = held(painting())
    expected = pipe(
        by_embeds(cond=0.6), lambda step: ("cond",), 24, torch.linspace(-1.5, 2, 8).reshape(1, 2, 4)
    )
    net, noise_scheduler = Painter().eval(), DDIMScheduler(prediction_type="sample")
    assert torch.equal(looped(held(net), noise_scheduler), expected)
    assert not any("hindsight" in note for note in report(net).notes)
    assert type(noise_scheduler) is DDIMScheduler


def test_a_loop_that_steps_another_noise_scheduler_is_told_that_nothing_was_corrected() -> None:
    net, noise_scheduler, stepped = held(Painter().eval()), DDIMScheduler(), DDIMScheduler()
    stepped.set_timesteps(24)
    looped(net, noise_scheduler, stepped)
    assert any("no hindsight: DDIMScheduler clips" in note for note in report(net).notes)


def test_in_a_loop_whose_steps_add_noise_none_is_made_again() -> None:
    net, noise_scheduler = held(Painter().eval()), DDIMScheduler(prediction_type="sample")
    drawn = [
        looped(held(net, hindsight=hindsight), noise_scheduler, eta=0.5, generator=torch.Generator())
        for hindsight in (True, False)
    ]
    assert torch.equal(*drawn)
    looped(held(net), noise_scheduler, eta=0.5, generator=torch.Generator())
    assert any("no hindsight: DDIMScheduler with eta above 0" in note for note in report(net).notes)


class WithSound(ToyPipeline):
    """Steps another noise scheduler beside its own at each step."""

    def __init__(self, transformer: ToyDenoiser, scheduler: DDIMScheduler, sound: DDIMScheduler) -> None:
        super().__init__(transformer, scheduler)
        self.register_modules(sound=sound)

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        self.sound.set_timesteps(24)
        self.heard = torch.ones(1, 2, 4)
        return super().__call__(*args, **kwargs)

    def evaluate(self, x: Tensor, t: Tensor, *args: Any) -> dict[str, Tensor]:
        self.heard = self.sound.step(self.heard / 2, t, self.heard)[0]
        return super().evaluate(x, t, *args)


def test_a_second_noise_scheduler_makes_no_difference() -> None:
    alone = painting()
    pipe = WithSound(alone.transformer, alone.scheduler, DDIMScheduler())
    pipe.set_progress_bar_config(disable=True)
    expected = painted(held(alone))
    restore(alone)
    assert torch.equal(painted(held(pipe)), expected)
