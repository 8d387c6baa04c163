"""Guided velocities: what the noise scheduler gets of two guidance passes is predicted and corrected, where guidance is not linear in them too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline, EulerDiscreteScheduler, FlowMatchEulerDiscreteScheduler
from support.toys import ToyDenoiser, ToyPipeline, by_embeds
from torch import Tensor
from zoo.pipelines import CASES

from diffcache import accelerate, plan, report
from diffcache.engine.guided_steps import GuidedSteps
from diffcache.noise_schedulers.influence import Influence
from diffcache.noise_schedulers.levels import levels_of
from diffcache.noise_schedulers.step_calls import StepCall
from diffcache.noise_schedulers.timetable import timetable_of
from diffcache.prediction.predictors import Polynomial
from diffcache.reports.records import TickCalls
from diffcache.schedulers.steps import Decision
from diffcache.store.formats import Format
from diffcache.store.rings import StoreSetup

STEPS, SCALE = 12, 3.0
BASE, SLOPE, BEND = torch.linspace(2, 3, 8), torch.linspace(-1, 2, 8), torch.linspace(1, -2, 8)


class Straight(ToyDenoiser):
    """Its guided velocity is a polynomial in time if guidance keeps the norm of the conditional output, and neither pass is one."""

    bend = 0.0

    def forward(
        self, hidden_states: Tensor, timestep: Tensor, encoder_hidden_states: Tensor
    ) -> tuple[Tensor]:  # type: ignore[override]
        time = (timestep / 1000)[:, None, None]
        wanted = BASE + time * SLOPE + self.bend * time**2 * BEND
        sign = 1.0 + 0.5 * torch.sin(9 * time)
        conditional = wanted.roll(1, dims=-1).expand(len(timestep), 2, 8)
        unconditional = (SCALE * conditional - wanted * sign) / (SCALE - 1)
        is_conditional = encoder_hidden_states.mean(dim=(1, 2))[:, None, None] > 0
        return (torch.where(is_conditional, conditional, unconditional),)


class KeepsNorm(ToyPipeline):
    """Guides as Lumina 2 does."""

    def __call__(self, cfg_normalization: bool = True, guidance_scale: float = SCALE, **options: Any) -> Any:
        return super().__call__(by_embeds(cond=1.0, uncond=-1.0), **options)

    def evaluate(
        self, x: Tensor, t: Tensor, names: Sequence[str], contexts: bool, remade: bool, batched: bool
    ) -> dict[str, Tensor]:
        outputs = super().evaluate(x, t, names, contexts, remade, batched)
        conditional = outputs["cond"]
        if len(outputs) == 1:
            return outputs
        mixed = torch.lerp(outputs["uncond"], conditional, SCALE)
        norms = [each.norm(dim=-1, keepdim=True) for each in (conditional, mixed)]
        return {"cond": mixed * norms[0] / norms[1]}


def pipeline(bend: float = 0.0) -> KeepsNorm:
    net = Straight().eval()
    net.bend = bend
    pipe = KeepsNorm(net, FlowMatchEulerDiscreteScheduler())
    pipe.set_progress_bar_config(disable=True)
    return pipe


def drawn(pipe: KeepsNorm, **options: Any) -> Tensor:
    latents = torch.linspace(-1.5, 2, 16).reshape(1, 2, 8)
    found: Tensor = pipe(num_inference_steps=STEPS, latents=latents, **options)
    return found


def error_of(pipe: KeepsNorm, method: str, **options: Any) -> float:
    """The largest error of a run, whose method's options are these."""
    full = drawn(pipe)
    return float((drawn(accelerate(pipe, method, **options)) - full).abs().max())


LINE: dict[str, Any] = {"interval": 3, "order": 1, "axis": "tick", "warmup_steps": 2, "tail_steps": 1}
"""Every third tick is computed, and a straight line predicts the others."""


def test_reused_ticks_get_weighted_sums_of_guided_velocities() -> None:
    assert error_of(pipeline(), "uniform", hindsight=True, **LINE) < 1e-4
    assert error_of(pipeline(), "uniform", hindsight=False, **LINE) > 1e-2


def test_both_passes_in_one_batch_make_no_difference() -> None:
    pipe = pipeline()
    full = drawn(pipe)
    accelerate(pipe, "uniform", hindsight=True, **LINE)
    torch.testing.assert_close(drawn(pipe, batched=True), full, rtol=0, atol=1e-4)


def test_computed_ticks_correct_the_guided_velocity() -> None:
    """A straight line is wrong by the bend, and the parabola that corrects it is right. The last step is too short to correct others."""
    pipe = pipeline(bend=0.3)
    full = drawn(pipe)
    accelerate(pipe, "uniform", hindsight=True, **LINE | {"warmup_steps": 3, "tail_steps": 2})
    torch.testing.assert_close(drawn(pipe), full, rtol=0, atol=1e-3)
    assert len(report(pipe).computed_ticks) < STEPS


def test_where_guidance_ends_within_a_run_passes_go_on() -> None:
    """From tick 7 on the conditional pass is called alone, and its output is a straight line, too."""

    def passes(step: int) -> Sequence[str]:
        return ("cond", "uncond") if step < 7 else ("cond",)

    pipe = pipeline()
    full = drawn(pipe, passes=passes)
    accelerate(pipe, "uniform", hindsight=True, **LINE)
    torch.testing.assert_close(drawn(pipe, passes=passes), full, rtol=0, atol=1e-4)


def test_a_schedule_of_such_a_run_gives_it_again() -> None:
    pipe = pipeline()
    accelerate(pipe, "uniform", hindsight=True, **LINE)
    corrected = drawn(pipe)
    assert torch.equal(drawn(accelerate(pipe, report(pipe).to_schedule())), corrected)


def test_a_run_that_computes_everything_is_left_as_it_is() -> None:
    pipe = pipeline()
    full = drawn(pipe)
    assert torch.equal(drawn(accelerate(pipe, "uniform", interval=1, hindsight=True)), full)


@pytest.mark.parametrize("name", ["Lumina2Pipeline", "QwenImagePipeline"])
def test_a_plan_knows_what_is_kept(name: str) -> None:
    case = CASES[name]
    pipe = accelerate(case.build(), "even", speedup=2)
    foretold = plan(pipe, **case.call(0, STEPS))
    case.render(pipe, 0, STEPS)
    assert report(pipe).cache_bytes == foretold.cache_bytes


def test_guided_velocities_are_kept_in_the_format_of_features() -> None:
    case, kept = CASES["Lumina2Pipeline"], []
    for cache_dtype in (None, "int8"):
        pipe = accelerate(case.build(), "even", speedup=2, cache_dtype=cache_dtype)
        case.render(pipe, 0, STEPS)
        kept.append(report(pipe).cache_bytes)
    assert kept[1] < 0.6 * kept[0]


def told_of(monkeypatch: pytest.MonkeyPatch) -> list[GuidedSteps]:
    """What is told of steps from now on."""
    told: list[GuidedSteps] = []
    stepping = GuidedSteps.stepping

    def noted(self: GuidedSteps, *args: Any) -> StepCall:
        told.append(self)
        return stepping(self, *args)

    monkeypatch.setattr(GuidedSteps, "stepping", noted)
    return told


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("uniform", {"order": 1, "hindsight": False}),
        ("uniform", {"order": 0, "hindsight": True}),
        ("uniform", {"site": "stack"}),
        ("easycache", {"per_sample": True}),
    ],
)
def test_passes_stand_for_themselves_elsewhere(
    method: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without hindsight, where residuals are stored, inside the denoiser, and where each sample is decided for itself."""
    told, case = told_of(monkeypatch), CASES["Lumina2Pipeline"]
    case.render(accelerate(case.build(), method, **options), 0, STEPS)
    assert not told


@pytest.mark.parametrize(
    ("name", "options", "is_told"),
    [
        ("FluxPipeline", {}, False),
        ("StableDiffusionPipeline", {}, False),
        ("StableDiffusionPipeline", {"guidance_rescale": 0.7}, True),
        ("Lumina2Pipeline", {}, True),
        ("Lumina2Pipeline", {"cfg_normalization": False}, False),
    ],
)
def test_plain_guidance_is_linear(
    name: str, options: dict[str, Any], is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, case = told_of(monkeypatch), CASES[name]
    pipe = case.build()
    if "Stable" in name:
        pipe.scheduler = EulerDiscreteScheduler.from_config(pipe.scheduler.config)
    case.render(accelerate(pipe, "even", speedup=2), 0, STEPS, **options)
    assert bool(told) == is_told


class Told:
    """Guided velocities of a run over eight steps, of which every second one is computed."""

    def __init__(self) -> None:
        noise_scheduler = FlowMatchEulerDiscreteScheduler()
        noise_scheduler.set_timesteps(8)
        levels = levels_of(noise_scheduler)
        self.noise_scheduler = noise_scheduler
        self.timetable = timetable_of(noise_scheduler, None, Influence(noise_scheduler, levels))
        self.setup = StoreSetup(Polynomial(1, "tick"), Format(), self.timetable, hindsight=True)
        self.setup.streams = 1
        self.steps = GuidedSteps(self.timetable, self.setup)

    def step(self, tick: int, *decisions: Decision, names: Sequence[str] = ("cond", "uncond")) -> bool:
        """Whether a step is changed."""
        time = self.noise_scheduler.timesteps[tick]
        call = StepCall(torch.full((1, 4), tick**2 / 9), time, torch.ones(1, 4), {})
        calls = tuple(("transformer", name, 1) for name in names)
        return (
            self.steps.stepping(self.noise_scheduler, tick, call, TickCalls(calls, frozenset(decisions)))
            is not call
        )


COMPUTES, REUSES, HOLDS = Decision.COMPUTE, Decision.PREDICT, Decision.HOLD


def test_while_guided_velocities_are_corrected_outputs_are_not() -> None:
    told = Told()
    assert told.setup.corrects_outputs
    assert not told.step(0, COMPUTES)
    assert told.step(1, REUSES)
    assert told.step(2, COMPUTES)
    assert not told.setup.corrects_outputs
    assert sum(tensor.numel() for tensor in told.steps.tensors()) == 2 * 4


@pytest.mark.parametrize(
    "why", ["other passes", "decisions differ", "another scale", "two outputs", "another format", "forgotten"]
)
def test_it_ends_for_the_rest_of_the_run(why: str) -> None:
    told = Told()
    told.step(0, COMPUTES)
    told.step(1, REUSES)
    match why:
        case "other passes":
            assert not told.step(2, COMPUTES, names=("cond",))
        case "decisions differ":
            assert not told.step(2, REUSES, HOLDS)
        case "another scale":
            told.timetable.guidance_changes(2)
        case "two outputs":
            told.setup.streams = 2
        case "another format":
            told.steps.recode()
        case _:
            told.steps.forget()
    for tick, decision in enumerate((COMPUTES, REUSES, COMPUTES, REUSES), start=3):
        assert not told.step(tick, decision)
        assert told.setup.corrects_outputs
    assert not [*told.steps.tensors()]


def test_a_run_that_reuses_its_first_tick_has_nothing_to_predict_from() -> None:
    told = Told()
    assert not told.step(0, REUSES)
    assert told.setup.corrects_outputs


class Late(KeepsNorm):
    """Another denoiser makes the unconditional pass, from step 6 on."""

    def __init__(self, transformer: Straight, unconditional_transformer: Straight, scheduler: Any) -> None:
        DiffusionPipeline.__init__(self)
        self.register_modules(
            transformer=transformer, unconditional_transformer=unconditional_transformer, scheduler=scheduler
        )
        self.set_progress_bar_config(disable=True)

    def one_by_one(self, x: Tensor, t: Tensor, named: dict[str, Any], contexts: bool) -> dict[str, Tensor]:
        nets = {"cond": self.transformer, "uncond": self.unconditional_transformer}
        return {name: nets[name](x, t.expand(len(x)), **given)[0] for name, given in named.items()}


def test_where_a_second_denoiser_comes_late_each_pass_is_corrected_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = told_of(monkeypatch)
    pipe = Late(Straight().eval(), Straight().eval(), FlowMatchEulerDiscreteScheduler())
    accelerate(pipe, "uniform", hindsight=True, **LINE)
    corrects: list[bool] = []
    drawn(
        pipe,
        passes=lambda step: ("cond", "uncond") if step >= 6 else ("cond",),
        callback_on_step_end=lambda *step: corrects.append(told[0]._setup.corrects_outputs),
    )
    assert corrects == [False] * 6 + [True] * (STEPS - 6)
