"""Hindsight in whole runs: what reused ticks lacked is made good at the next computed one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.harness import dressed
from support.toys import ToyDenoiser, ToyPipeline, ToyScheduler, by_embeds, toy_pipeline
from torch import Tensor
from zoo.pipelines import CASES

from diffcache import ConfigError, TargetError, accelerate, denoising_run, report, restore
from diffcache.host.call import Call
from diffcache.recipes.fbcache import FBCacheConfig
from diffcache.recipes.replay import ReplayConfig
from diffcache.store.streams import Layout, Past

STEPS = 13
TOLERANCE = 1e-4
"""The pictures are some hundreds high."""


class Curved(ToyDenoiser):
    """v = (mean of the embedding) * (a quadratic in the noise level, without surprises), whatever the latent is."""

    def forward(
        self, hidden_states: Tensor, timestep: Tensor, encoder_hidden_states: Tensor
    ) -> tuple[Tensor]:  # type: ignore[override]
        sigma = timestep / 1024
        v = encoder_hidden_states.mean(dim=(1, 2)) * (8 * sigma**2 - 3 * sigma + 20)
        return (v[:, None, None].expand_as(hidden_states),)


class Picky(ToyScheduler):
    """Takes latents of three dimensions only."""

    def step(self, model_output: Tensor, timestep: Tensor, sample: Tensor) -> tuple[Tensor]:
        if sample.ndim != 3:
            raise ValueError("three dimensions, please")
        return super().step(model_output, timestep, sample)


def curved_pipeline() -> ToyPipeline:
    return toy_pipeline(Curved())


def picture(pipe: ToyPipeline, **options: Any) -> Tensor:
    return pipe(by_embeds(), **{"num_inference_steps": STEPS, **options})


def held(pipe: ToyPipeline, hindsight: bool, **options: Any) -> Tensor:
    options = {"interval": 3, "basis": "output", "axis": "sigma", **options}
    return picture(accelerate(pipe, "uniform", hindsight=hindsight, **options))


@pytest.mark.parametrize("batched", [False, True], ids=["two calls", "one call"])
@pytest.mark.parametrize("interval", [2, 3, 4])
def test_a_parabola_is_made_good_to_the_last(batched: bool, interval: int) -> None:
    pipe = curved_pipeline()
    full = picture(pipe, batched=batched)
    pictures = []
    for hindsight in (True, False):
        options = {"interval": interval, "basis": "output", "axis": "sigma", "warmup_steps": 2}
        accelerate(pipe, "uniform", hindsight=hindsight, **options)
        pictures.append(picture(pipe, batched=batched))
    assert len(report(pipe).computed_ticks) < STEPS
    repaired, left = ((each - full).abs().max() for each in pictures)
    assert repaired < TOLERANCE
    assert left > 0.1


@pytest.mark.parametrize("storage", ["bfloat16", "int8"])
def test_features_in_fewer_bits_serve_too(storage: str) -> None:
    pipe = curved_pipeline()
    full, repaired = picture(pipe), held(pipe, True, cache_dtype=storage)
    assert (repaired - full).abs().max() < 0.1 * (held(pipe, False) - full).abs().max()


def test_a_schedule_of_such_a_run_gives_it_again() -> None:
    pipe = curved_pipeline()
    repaired = held(pipe, True)
    schedule = report(pipe).to_schedule()
    assert torch.equal(picture(accelerate(pipe, schedule)), repaired)
    assert torch.equal(picture(accelerate(pipe, schedule, hindsight=False)), held(pipe, False))


def test_what_affine_maps_repair_is_not_made_good_once_more() -> None:
    pipe = curved_pipeline()
    held(pipe, True)
    schedule = report(pipe).to_schedule()
    gains = {"transformer/all/gain": torch.full((STEPS, 4), 1.25)}
    repaired = replace(schedule, corrections=gains, fitted_with=schedule.fingerprint())
    pictures = [
        picture(accelerate(pipe, ReplayConfig(schedule=repaired, hindsight=hindsight)))
        for hindsight in (True, False)
    ]
    assert torch.equal(*pictures)
    assert not torch.equal(pictures[0], picture(accelerate(pipe, schedule, hindsight=False)))


def test_the_default_has_hindsight_unless_told_not_to() -> None:
    pipe = CASES["FluxPipeline"].build()
    pictures = [
        CASES["FluxPipeline"].render(accelerate(pipe, speedup=2, **options), steps=30)
        for options in ({}, {"hindsight": True}, {"hindsight": False})
    ]
    assert torch.equal(pictures[0], pictures[1])
    assert not torch.equal(pictures[0], pictures[2])


def test_samples_that_are_decided_one_by_one_are_made_good_one_by_one() -> None:
    pipe = curved_pipeline()
    latents = torch.stack([torch.linspace(0, 1, 8).reshape(2, 4), torch.linspace(9, 1, 8).reshape(2, 4)])
    accelerate(pipe, "easycache", threshold=0.3, per_sample=True, hindsight=True)
    embeds = {"cond": {"encoder_hidden_states": torch.tensor([3.0, 40.0])[:, None, None].expand(2, 2, 4)}}
    both = pipe(embeds, lambda step: ("cond",), STEPS, latents)
    assert 0 < len(report(pipe).computed_ticks) < STEPS
    for i in range(2):
        mine = {"cond": {"encoder_hidden_states": embeds["cond"]["encoder_hidden_states"][i : i + 1]}}
        alone = pipe(mine, lambda step: ("cond",), STEPS, latents[i : i + 1])
        torch.testing.assert_close(both[i : i + 1], alone)


def test_a_learned_variance_is_left_as_it_is() -> None:
    net, latent = ToyDenoiser(), torch.ones(1, 2, 4)
    call = Call.of(net, (latent, torch.tensor([1.0])), {})
    output = torch.full((1, 4, 4), 3.0)
    layout = Layout(call, output, basis="output")
    past = Past([(torch.full((1, 4, 4), 4.0),)], [-1.0])
    (corrected,) = layout.corrected([output], layout.pairs(call.tensors, [output]), 1.0, past)
    assert torch.equal(corrected[:, :2], torch.full((1, 2, 4), 3.0 + 3.0 - 4.0))
    assert torch.equal(corrected[:, 2:], output[:, 2:])


def test_whole_numbers_are_left_as_they_are() -> None:
    net, latent = ToyDenoiser(), torch.ones(1, 2, 4)
    call = Call.of(net, (latent, torch.tensor([1.0])), {})
    outputs = [torch.tensor([[5, 7]]), torch.ones(1, 3, 9)]
    layout = Layout(call, tuple(outputs), basis="output")
    pairs = layout.pairs(call.tensors, outputs)
    corrected = layout.corrected(outputs, pairs, 1.0, Past([tuple(outputs)], [-1.0]))
    assert torch.equal(corrected[0], outputs[0])


def test_a_noise_scheduler_that_cannot_be_tried_out_is_reported_and_costs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe = curved_pipeline()
    without = held(pipe, False)
    pipe.register_modules(scheduler=Picky())
    monkeypatch.setattr("diffcache.store.rings.hindsight_weights", None)
    assert torch.equal(held(pipe, True), without)
    assert any("no hindsight: Picky" in note for note in report(pipe).notes)


def test_a_loop_of_ones_own_names_its_noise_scheduler() -> None:
    net, noise_scheduler = Curved().eval(), ToyScheduler()
    embeds = by_embeds()["cond"]
    noise_scheduler.set_timesteps(STEPS)

    def looped(**known: Any) -> Tensor:
        x = torch.arange(8.0).reshape(1, 2, 4)
        with torch.no_grad(), denoising_run(net, STEPS, **known) as run:
            for i, t in enumerate(noise_scheduler.timesteps):
                run.begin_step(i)
                x = noise_scheduler.step(net(x, t.expand(1), **embeds)[0], t, x)[0]
        return x

    full = looped()
    accelerate(net, "uniform", interval=3, basis="output", axis="sigma", warmup_steps=2, hindsight=True)
    assert (looped(noise_scheduler=noise_scheduler) - full).abs().max() < TOLERANCE
    assert (looped(sigmas=noise_scheduler.sigmas) - full).abs().max() > 0.1
    run = denoising_run(net, 5, noise_scheduler=noise_scheduler)
    with pytest.raises(TargetError, match="13 timesteps, and num_steps is 5"), run:
        pass


def test_a_loop_that_names_none_is_told_so() -> None:
    net = accelerate(Curved().eval())
    with torch.no_grad(), denoising_run(net, STEPS) as run:
        for i in range(STEPS):
            run.begin_step(i)
            net(torch.zeros(1, 2, 4), torch.tensor([1000.0 - i]), **by_embeds()["cond"])
    assert any("no hindsight: no noise scheduler is known" in note for note in report(net).notes)


def test_noise_that_a_pipeline_asks_for_at_each_step_ends_it() -> None:
    name = "StableDiffusionPipeline"
    case, pipe = CASES[name], dressed(CASES[name].build(), "DDIM")
    pipe.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config, clip_sample=False)
    pictures = [
        case.render(accelerate(pipe, "uniform", interval=2, hindsight=hindsight), steps=6, eta=eta)
        for eta in (0.0, 1.0)
        for hindsight in (True, False)
    ]
    assert not torch.equal(pictures[0], pictures[1])
    assert torch.equal(pictures[2], pictures[3])


def test_a_control_network_is_never_amended() -> None:
    pipe = CASES["StableDiffusionControlNetPipeline"].build()
    case = CASES["StableDiffusionControlNetPipeline"]
    pictures = [
        case.render(
            accelerate(pipe, "uniform", interval=2, components=("controlnet",), hindsight=hindsight), steps=6
        )
        for hindsight in (True, False)
    ]
    assert torch.equal(*pictures)


def test_places_inside_are_refused() -> None:
    pipe = CASES["FluxPipeline"].build()
    with pytest.raises(ConfigError, match="hindsight= is for whole denoisers"):
        accelerate(pipe, "uniform", site="stack", hindsight=True)
    restore(pipe)


def test_decisions_for_each_sample_are_refused_inside() -> None:
    class EachSample(FBCacheConfig):
        @property
        def per_sample(self) -> bool:
            return True

    pipe = CASES["FluxPipeline"].build()
    with pytest.raises(ConfigError, match="per_sample= is for whole denoisers"):
        accelerate(pipe, EachSample())
    with pytest.raises(TargetError, match="is not accelerated"):
        report(pipe)


@pytest.mark.parametrize("scale", [3.0, 7.0], ids=["steady", "changed"])
def test_no_error_is_corrected_after_guidance_has_changed(scale: float) -> None:
    def after(pipe: ToyPipeline, step: int, time: Tensor, tensors: dict[str, Any]) -> dict[str, Any]:
        if step == 2:  # of ticks 0 to 3 the first and the last are computed
            pipe._guidance_scale = scale
        return tensors

    pipe, pictures = curved_pipeline(), []
    for hindsight in (True, False):
        pipe._guidance_scale = 3.0
        accelerate(pipe, "uniform", interval=3, hindsight=hindsight)
        pictures.append(picture(pipe, num_inference_steps=4, callback_on_step_end=after))
        assert report(pipe).computed_ticks == [0, 3]
    assert torch.equal(*pictures) is (scale != 3.0)


def test_rescaled_guidance_has_hindsight() -> None:
    pipe = curved_pipeline()
    without = held(pipe, False)
    pipe._guidance_rescale = 0.7
    assert not torch.equal(held(pipe, True), without)
    assert not any("no hindsight" in note for note in report(pipe).notes)
