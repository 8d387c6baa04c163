"""Guided velocities: what the noise scheduler gets of two guidance passes is predicted and corrected, where guidance is not linear in them too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from support.toys import ToyDenoiser, ToyPipeline, by_embeds
from torch import Tensor, nn
from zoo.pipelines import CASES

from diffcache import accelerate, denoising_run, plan, report
from diffcache.engine.guided_steps import GuidedSteps
from diffcache.engine.step_hindsight import StepHindsight

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


def test_where_guidance_ends_within_a_run_it_begins_anew() -> None:
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


def step_hindsights(monkeypatch: pytest.MonkeyPatch) -> list[StepHindsight]:
    """What steps are told to from now on."""
    told: list[StepHindsight] = []
    stepping = GuidedSteps.stepping

    def noted(self: GuidedSteps, *args: Any) -> Any:
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
    told = step_hindsights(monkeypatch)
    case = CASES["StableDiffusion3Pipeline"]
    pipe = accelerate(case.build(), method, **options)
    case.render(pipe, 0, STEPS)
    assert not told


def test_a_run_without_guidance_has_no_guided_velocities(monkeypatch: pytest.MonkeyPatch) -> None:
    told = step_hindsights(monkeypatch)
    case = CASES["FluxPipeline"]
    case.render(accelerate(case.build(), "even", speedup=2), 0, STEPS)
    assert not told


def test_a_loop_of_ones_own_gets_what_a_server_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not say how it guides."""
    told = step_hindsights(monkeypatch)
    net: nn.Module = accelerate(Straight().eval(), "uniform", hindsight=True, **LINE)
    noise_scheduler = FlowMatchEulerDiscreteScheduler()
    noise_scheduler.set_timesteps(STEPS)
    x = torch.zeros(1, 2, 8)
    embeds = by_embeds(cond=1.0)["cond"]
    with torch.no_grad(), denoising_run(net, STEPS, noise_scheduler=noise_scheduler) as run:
        for i, time in enumerate(noise_scheduler.timesteps):
            run.begin_step(i)
            x = noise_scheduler.step(net(x, time.expand(1), **embeds)[0], time, x)[0]
    assert len(report(net).computed_ticks) < STEPS
    assert not told


def test_a_pass_that_is_decided_for_itself_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one pass is computed and the other reused, nothing is predicted of both."""
    told = step_hindsights(monkeypatch)
    pipe = pipeline()
    accelerate(pipe, "uniform", hindsight=True, **LINE)
    drawn(pipe)
    schedule = report(pipe).to_schedule()
    rows = {"cond": "#" * STEPS, "uncond": "##" + "-#" * ((STEPS - 2) // 2)}
    in_part = type(schedule)(**{**vars(schedule), "table": dict.fromkeys(schedule.table, rows)})
    told.clear()
    drawn(accelerate(pipe, in_part))
    mixed = [tick for tick in range(2, STEPS) if rows["uncond"][tick] == "-"]
    assert len(told) == STEPS - len(mixed)
