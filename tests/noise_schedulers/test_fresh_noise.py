"""Noise schedulers that add fresh noise at their steps are told from others, and what that costs is said."""

from __future__ import annotations

import logging
import threading
from typing import Any

import diffusers
import pytest
import torch
from support.harness import accelerated, render
from support.toys import ToyDenoiser
from zoo.pipelines import CASES

from diffcache import accelerate, denoising_run, report
from diffcache.noise_schedulers.fresh_noise import adds_fresh_noise
from diffcache.noise_schedulers.influence import Influence
from diffcache.noise_schedulers.quirks import WITHOUT_NOISE, sigmas_of, without_noise
from diffcache.reports.run_report import RunReport

SD, STEPS = "StableDiffusionPipeline", 18
NOISY: list[tuple[str, dict[str, Any], str]] = [
    ("EulerAncestralDiscreteScheduler", {}, "EulerDiscreteScheduler"),
    ("KDPM2AncestralDiscreteScheduler", {}, "KDPM2DiscreteScheduler"),
    ("LCMScheduler", {}, "TCDScheduler with eta=0"),
    ("DDPMScheduler", {}, "DDIMScheduler"),
    ("DDPMScheduler", {"variance_type": "learned_range"}, "DDIMScheduler"),
    ("DDPMWuerstchenScheduler", {}, "a deterministic one, if one suits the model"),
    ("CogVideoXDPMScheduler", {}, "CogVideoXDDIMScheduler"),
    ("SASolverScheduler", {}, "UniPCMultistepScheduler"),
    ("FlowMatchLCMScheduler", {}, "FlowMatchEulerDiscreteScheduler"),
    ("FlowMatchEulerDiscreteScheduler", {"stochastic_sampling": True}, "stochastic_sampling=False"),
    ("DPMSolverMultistepScheduler", {"algorithm_type": "sde-dpmsolver++"}, 'algorithm_type="dpmsolver++"'),
    ("UnCLIPScheduler", {}, "a deterministic one, such as DDIMScheduler"),
]
QUIET = [
    "EulerDiscreteScheduler",
    "KDPM2DiscreteScheduler",
    "HeunDiscreteScheduler",
    "DDIMScheduler",
    "TCDScheduler",
    "UniPCMultistepScheduler",
    "FlowMatchEulerDiscreteScheduler",
    "FlowMatchHeunDiscreteScheduler",
    "DEISMultistepScheduler",
    "EDMEulerScheduler",
]


def made(name: str, steps: int = STEPS, **config: Any) -> Any:
    noise_scheduler = getattr(diffusers, name)(**config)
    noise_scheduler.set_timesteps(steps)
    return noise_scheduler


@pytest.mark.parametrize(("name", "config", "instead"), NOISY, ids=[case[0] for case in NOISY])
@pytest.mark.parametrize("steps", [2, 4, STEPS])
def test_one_that_adds_noise_is_found_and_left_alone(
    name: str, config: dict[str, Any], instead: str, steps: int
) -> None:
    noise_scheduler, state = made(name, steps, **config), torch.get_rng_state()
    before = {key: repr(value) for key, value in vars(noise_scheduler).items()}
    assert adds_fresh_noise(noise_scheduler)
    assert without_noise(noise_scheduler) == instead
    assert {key: repr(value) for key, value in vars(noise_scheduler).items()} == before
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", QUIET)
@pytest.mark.parametrize("steps", [1, 2, STEPS])
def test_one_that_adds_none_is_not_accused(name: str, steps: int) -> None:
    assert not adds_fresh_noise(made(name, steps))


def test_what_is_named_instead_exists_and_adds_none() -> None:
    for instead in WITHOUT_NOISE.values():
        assert not adds_fresh_noise(made(instead.removesuffix(" with eta=0")))


def test_the_default_says_that_reuse_is_not_worth_it() -> None:
    """On noise: whatever the threshold, the denoiser of the zoo is reused nowhere."""
    pipe = accelerated(SD, "trajectory", "EulerAncestral", threshold=1e-6)
    render(pipe, SD, steps=STEPS)
    assert report(pipe).notes[0] == (
        "nothing was reused: reuse is not worth it with EulerAncestralDiscreteScheduler, which adds fresh noise at each "
        "step: use EulerDiscreteScheduler"
    )
    pipe = accelerated(SD, "trajectory", "Euler", threshold=1e-6)
    render(pipe, SD, steps=STEPS)
    assert "threshold=1e-06 allows no reuse here: raise it" in report(pipe).notes[0]


@pytest.mark.parametrize(
    "options", [{"speedup": 2}, {"config": "uniform", "interval": 3, "hindsight": True}], ids=str
)
def test_what_reuse_costs_is_noted_and_logged_once(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    pipe = accelerated(SD, "uniform", "LCM")
    accelerate(pipe, **options)
    with caplog.at_level(logging.WARNING, logger="diffcache"):
        render(pipe, SD, steps=STEPS)
        render(accelerate(pipe, **options), SD, steps=STEPS)
    cost = (
        "LCMScheduler adds fresh noise at each step, and reused outputs were computed before that noise: expect a result "
        "that differs visibly from the full run's, or use TCDScheduler with eta=0"
    )
    assert report(pipe).compute_fraction < 1
    assert report(pipe).expected_error is None
    assert report(pipe).notes[0] == cost
    assert [record.message for record in caplog.records if record.name == "diffcache"] == [f"{cost}."]


def test_a_schedule_claims_no_error_where_noise_is_added_that_it_was_made_without() -> None:
    case = CASES["FluxPipeline"]
    pipe = accelerate(case.build(), speedup=2)
    case.render(pipe, 0, STEPS)
    schedule = report(pipe).to_schedule()
    assert schedule.expected_error
    case.render(accelerate(pipe, schedule), 0, STEPS)
    assert report(pipe).expected_error == pytest.approx(schedule.expected_error)
    pipe.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config, stochastic_sampling=True)
    case.render(pipe, 0, STEPS)
    assert not report(pipe).expected_error


def test_noise_that_the_call_asks_for_is_known_before_the_first_step() -> None:
    case = CASES[SD]
    pipe = case.build()
    pipe.scheduler = diffusers.DDIMScheduler.from_config(pipe.scheduler.config, clip_sample=False)
    accelerate(pipe, "even", speedup=2)
    case.render(pipe, 0, STEPS)
    even = report(pipe).computed_ticks
    accelerate(pipe, "trajectory", speedup=2)
    case.render(pipe, 0, STEPS)
    assert report(pipe).computed_ticks != even
    case.render(pipe, 0, STEPS, eta=1.0)
    told = report(pipe)
    assert told.computed_ticks == even  # outputs are held there, as noise cannot be extrapolated
    assert not any("before the run" in note for note in told.notes)
    assert any("DDIMScheduler with eta above 0" in note for note in told.notes)


def with_tcd(eta: float | None) -> RunReport:
    pipe = CASES[SD].build()
    pipe.scheduler = diffusers.TCDScheduler.from_config(pipe.scheduler.config)
    accelerate(pipe, "even", speedup=2)  # plans of the default may hold outputs, and then want no hindsight
    CASES[SD].render(pipe, 0, STEPS, **({} if eta is None else {"eta": eta}))
    told: RunReport = report(pipe)
    return told


@pytest.mark.parametrize("eta", [None, 0.0])
def test_tcd_without_noise_has_hindsight(eta: float | None) -> None:
    """Pipelines pass eta=0 unless they are told otherwise, and TCD's own default adds noise."""
    assert with_tcd(eta).notes == []


def test_tcd_with_noise_has_none_and_says_what_reuse_costs() -> None:
    cost, hindsight = with_tcd(0.3).notes
    assert cost.startswith("TCDScheduler with eta above 0 adds fresh noise at each step")
    assert cost.endswith("or use eta=0")
    assert hindsight == "no hindsight: TCDScheduler with eta above 0 adds noise at its steps"


def test_the_influence_of_tcd_is_that_of_its_steps_without_noise() -> None:
    def result(changed: int | None = None) -> torch.Tensor:
        noise_scheduler = made("TCDScheduler")
        sample = torch.ones(1, 1, 1, 1, dtype=torch.float64)
        for i, time in enumerate(noise_scheduler.timesteps):
            output = torch.full_like(sample, 0.5 + (i == changed))
            sample = noise_scheduler.step(output, time, sample, eta=0.0)[0]
        return sample

    influence, moved = Influence(made("TCDScheduler")), [float(result(i) - result()) for i in (3, 7)]
    assert influence.obstacle is None
    assert influence.ratio(3, 7) == pytest.approx(moved[0] / moved[1], rel=2e-3)
    assert sigmas_of(made("TCDScheduler")) is not None


def test_a_hand_written_loop_with_tcd_has_no_hindsight_and_says_why() -> None:
    noise_scheduler = made("TCDScheduler")
    net = accelerate(ToyDenoiser().eval(), "even", speedup=2)
    with torch.no_grad(), denoising_run(net, STEPS, noise_scheduler=noise_scheduler) as run:
        for i in range(STEPS):
            run.begin_step(i)
            net(torch.ones(1, 2, 4), torch.ones(1))
    assert report(net).notes == [
        "no hindsight: TCDScheduler adds noise at its steps unless eta=0, which this loop does not tell"
    ]


def test_another_thread_may_draw_meanwhile() -> None:
    """Nothing that it draws is taken for a step's, and nothing is drawn twice."""
    drawn, stop = list[float](), threading.Event()

    def draw() -> None:
        while not stop.is_set():
            drawn.append(float(torch.randn(())))

    torch.manual_seed(0)
    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for _ in range(20):
            assert not adds_fresh_noise(made("EulerDiscreteScheduler"))
            assert adds_fresh_noise(made("EulerAncestralDiscreteScheduler"))
            assert Influence(made("EulerDiscreteScheduler")).obstacle is None
            assert Influence(made("EulerAncestralDiscreteScheduler")).obstacle is not None
    finally:
        stop.set()
        thread.join()
    torch.manual_seed(0)
    assert drawn == [float(torch.randn(())) for _ in drawn]


class NoisyAtTheStart(diffusers.EulerDiscreteScheduler):  # type: ignore[misc] # diffusers has no types
    """Draws at its first step only."""

    def step(self, output: Any, time: Any, sample: Any, **options: Any) -> Any:
        if time == self.timesteps[0]:
            sample = sample + torch.randn(sample.shape, dtype=sample.dtype)
        return super().step(output, time, sample, **options)


def test_noise_at_one_step_is_an_obstacle_and_is_put_back() -> None:
    noise_scheduler, state = NoisyAtTheStart(), torch.get_rng_state()
    noise_scheduler.set_timesteps(STEPS)
    influence = Influence(noise_scheduler)
    assert influence.adds_noise
    assert influence.obstacle == "NoisyAtTheStart adds noise at its steps"
    assert torch.equal(torch.get_rng_state(), state)
