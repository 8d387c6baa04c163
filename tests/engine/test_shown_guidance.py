"""The first step shows the scale of guidance, where nothing tells it, and how much larger it makes velocities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler
from torch import Tensor, nn
from zoo.pipelines import CASES

from diffcache import accelerate, denoising_run, report, restore
from diffcache.config import CacheConfig, RunFacts
from diffcache.engine.guidance_watch import GuidanceWatch
from diffcache.engine.observers import NOBODY
from diffcache.engine.returned_outputs import ReturnedOutputs
from diffcache.engine.scales_seen import change_of
from diffcache.engine.scopes import innermost
from diffcache.engine.shown_guidance import PlainGuidance, passes_of, plain_guidance
from diffcache.noise_schedulers.levels import VELOCITY, Parametrisation
from diffcache.noise_schedulers.step_calls import StepCall
from diffcache.profiling.recording.covariance import covariance_of
from diffcache.recipes.easycache import EasyCacheConfig
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.schedulers.guidance import Guidance
from diffcache.schedulers.moments import Moment
from diffcache.schedulers.schedule import GUIDANCE_SCALE
from diffcache.schedulers.steps import Decision

STEPS = 20
SHAPE = (2, 4, 8, 8)


class Net(nn.Module):
    """Its velocity bends in time, and leans to the condition of each row."""

    def __init__(self, lean: float = 0.2) -> None:
        super().__init__()
        self.lean = lean

    def forward(self, hidden_states: Tensor, timestep: Tensor, condition: Tensor) -> Tensor:
        lean = condition.reshape(-1, 1, 1, 1) * torch.linspace(-1, 1, 8)
        return torch.sin(3 * hidden_states + timestep / 200) + self.lean * lean


def shown_scale(passes: Sequence[Tensor], guided: Tensor) -> float | None:
    pair = passes_of(passes, guided)
    return None if pair is None else PlainGuidance(*plain_guidance(pair, guided).tolist()).scale


def passes() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randn(2, *SHAPE, generator=generator)
    return one, one + 0.1 * other


def test_the_scale_of_two_passes_in_either_order_or_in_one_batch() -> None:
    one, other = passes()
    guided = torch.lerp(one, other, 4.5)
    assert shown_scale([one, other], guided) == 4.5
    assert shown_scale([other, one], guided) == 4.5
    assert shown_scale([torch.cat([other, one])], guided) == 4.5


def test_what_is_stored_may_be_rounded() -> None:
    one, other = passes()
    rounded = [(32 * each).round() / 32 for each in (one, other)]
    assert shown_scale(rounded, torch.lerp(one, other, 3.0)) == pytest.approx(3.0, abs=0.11)


def test_one_pass_as_it_was_has_a_scale_of_1() -> None:
    one, other = passes()
    assert shown_scale([one], one) == 1
    assert shown_scale([one, other], one) == 1  # two samples, one after the other
    assert shown_scale([one, one], one) == 1


def test_what_is_no_plain_guidance_shows_nothing() -> None:
    one, other = passes()
    assert shown_scale([one], torch.lerp(one, other, 7.5)) is None  # another network has a part in it
    assert shown_scale([one, other], 0.7 * torch.lerp(one, other, 3.0)) is None
    assert shown_scale([one, other, one], one) is None
    assert shown_scale([one[:1]], one) is None
    assert shown_scale([], one) is None
    assert shown_scale([one, other], one * torch.nan) is None


@pytest.mark.parametrize(("apart", "is_told"), [(1.0, True), (0.05, False)])
def test_passes_that_differ_by_little_more_than_rounding_show_no_change(apart: float, is_told: bool) -> None:
    one, other = passes()
    watch = watch_of(Guidance())
    for scale in (3.0, 1.0):
        pair = one, torch.lerp(one, other, apart)
        guidance = shown_by(watch, pair, torch.lerp(*pair, scale))
        watch.facts = replace(watch.facts, guidance=guidance or watch.facts.guidance)
    assert ("between 1 and 3" in str(change_of(watch.facts.guidance.scale, watch.later_scales()))) is is_told


def watch_of(
    guidance: Guidance,
    output: Parametrisation = VELOCITY,
    turned: float | None = 0.0,
    is_conditional_first: bool = False,
) -> GuidanceWatch:
    """Of a run of which so much is told, and whose denoiser returns this at its first tick."""
    timetable = SimpleNamespace(
        parametrisation=lambda tick: output, moment=lambda tick: Moment(tick, turned=turned)
    )
    engine = SimpleNamespace(
        returned=ReturnedOutputs(),
        progress=SimpleNamespace(shows_steps=True, tick=0, timetable=timetable),
        decider=SimpleNamespace(observer=NOBODY),
    )
    return GuidanceWatch(
        engine, TrajectoryConfig(), RunFacts("Net", guidance=guidance), False, is_conditional_first
    )  # type: ignore[arg-type]


def has_returned(watch: GuidanceWatch, outputs: list[tuple[str, Tensor]]) -> None:
    """Its guidance passes have returned these, by name."""
    watch.engine.returned.take = lambda: outputs  # type: ignore[method-assign]


def shown_by(
    watch: GuidanceWatch, returned: Sequence[Tensor], guided: Tensor, sample: Tensor | None = None
) -> Guidance | None:
    """What a step shows whose passes have returned these."""
    has_returned(watch, [(name, one) for name, one in zip("0123", returned, strict=False)])
    call = StepCall(guided, 1.0, torch.zeros_like(guided) if sample is None else sample, {})
    return watch.stepping(SimpleNamespace(), call)


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("is_batched", [True, False])
@pytest.mark.parametrize("scale", [2.0, 6.0])
def test_the_first_step_shows_how_much_larger_guidance_makes_the_velocity(
    scale: float, is_batched: bool, is_told: bool
) -> None:
    c, u = passes()
    guided = torch.lerp(u, c, scale)
    ratio = float(guided.square().mean().sqrt() / c.square().mean().sqrt())
    for pair in ((c, u), (u, c)):
        watch = watch_of(Guidance(scale if is_told else None))
        found = shown_by(watch, [torch.cat(pair)] if is_batched else pair, guided)
        assert found == Guidance(scale, shown=round(ratio, 2))
        assert watch.is_over is is_told


def test_what_counts_is_the_velocity_whatever_the_denoiser_returns() -> None:
    c, u = passes()
    sample = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    of_velocity, of_input = output = Parametrisation(0.3, 0.7)
    c_returned, u_returned = (of_velocity * one + of_input * sample for one in (c, u))
    guided = torch.lerp(u_returned, c_returned, 6.0)
    found = shown_by(watch_of(Guidance(6.0), output), (c_returned, u_returned), guided, sample)
    assert found == shown_by(watch_of(Guidance(6.0)), (c, u), torch.lerp(u, c, 6.0))


def test_where_the_norm_is_kept_the_passes_show_it_too() -> None:
    c, u = passes()
    told = Guidance(6.0, norm_along=-1)
    found = shown_by(watch_of(told), (c, u), told.of(c, u))
    free = shown_by(watch_of(Guidance(6.0)), (c, u), torch.lerp(u, c, 6.0))
    assert free is not None
    assert found == replace(told, shown=free.shown)


@pytest.mark.parametrize(("dtype", "is_shown"), [(torch.float32, True), (torch.bfloat16, False)])
def test_a_velocity_that_rounding_hides_shows_nothing(dtype: torch.dtype, is_shown: bool) -> None:
    """At little signal, of a predicted noise."""
    output = Parametrisation(0.01, 0.99)
    sample = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    returned = [(0.01 * one + 0.99 * sample).to(dtype) for one in passes()]
    found = shown_by(watch_of(Guidance(3.0), output), returned, torch.lerp(*returned, 3.0), sample.to(dtype))
    assert (found is not None) is is_shown


@pytest.mark.parametrize("returned", [[0, 1, 0], [0]], ids=["three passes", "one pass"])
def test_other_than_two_passes_show_nothing_more_than_was_told(returned: list[int]) -> None:
    pair = passes()
    assert shown_by(watch_of(Guidance(3.0)), [pair[i] for i in returned], pair[0]) is None


@pytest.mark.parametrize("turned", [0.3, None], ids=["image-to-image", "unknown noise levels"])
def test_nothing_but_a_step_from_pure_noise_shows_it(turned: float | None) -> None:
    c, u = passes()
    assert shown_by(watch_of(Guidance(3.0), turned=turned), (c, u), torch.lerp(u, c, 3.0)) is None
    found = shown_by(watch_of(Guidance(), turned=turned), (c, u), torch.lerp(u, c, 3.0))
    assert found == Guidance(3.0)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("is_batched", [True, False])
def test_where_a_pipeline_turns_the_sign_the_order_of_the_passes_counts(
    is_batched: bool, first: bool
) -> None:
    c, u = passes()
    c = 2 * c
    watch = watch_of(Guidance(3.0), is_conditional_first=first)
    one_by_one = [("cond", c), ("uncond", u)] if first else [("uncond", u), ("cond", c)]
    has_returned(watch, [("0", torch.cat((c, u) if first else (u, c)))] if is_batched else one_by_one)
    call = StepCall(-torch.lerp(u, c, 3.0), 1.0, torch.zeros_like(c), {})
    ratio = float(torch.lerp(u, c, 3.0).norm() / c.norm())
    assert watch.stepping(SimpleNamespace(), call) == Guidance(3.0, shown=round(ratio, 2))


def test_the_scale_that_a_step_shows_counts_and_not_the_one_that_was_told() -> None:
    c, u = passes()
    found = shown_by(watch_of(Guidance(7.0)), (c, u), torch.lerp(u, c, 2.0))
    assert found == Guidance(
        7.0, shown=shown_by(watch_of(Guidance(2.0)), (c, u), torch.lerp(u, c, 2.0)).shown
    )  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "name",
    ["StableDiffusionPipeline", "WanPipeline", "DiTPipeline", "Lumina2Pipeline", "HiDreamImagePipeline"],
)
def test_a_pipeline_shows_as_much_in_its_run_as_is_measured_of_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, original = list[RunFacts](), TrajectoryConfig.scheduler
    monkeypatch.setattr(
        TrajectoryConfig, "scheduler", lambda self, run: seen.append(run) or original(self, run)
    )
    pipe, call = CASES[name].build(), CASES[name].call(0, 4)
    accelerate(pipe, speedup=2)
    with torch.no_grad():
        pipe(**call)
    told, found = seen[0].guidance, seen[-1].guidance
    assert told.scale == found.scale > 1  # type: ignore[operator]
    assert told.shown is None
    assert found.shown is not None
    assert report(pipe).records[-1].amplification == found.shown
    restore(pipe)
    assert found.amplification == covariance_of(pipe, [CASES[name].call(0, 4)]).amplification


def test_a_pipeline_is_planned_with_what_its_first_tick_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["WanPipeline"]
    pipe, call = case.build(), {**case.call(0, STEPS), "guidance_scale": 5.0}
    accelerate(pipe, speedup=3)
    ticks = {}
    for distance in (0.0, 1.5):
        monkeypatch.setattr(
            Guidance, "showing", lambda self, *_, d=distance: replace(self, shown=1.0 + 4.0 * d)
        )
        with torch.no_grad():
            pipe(**call)
        ticks[distance] = report(pipe).computed_ticks
    assert ticks[0.0] != ticks[1.5]
    assert len(ticks[0.0]) == len(ticks[1.5])


def test_image_to_image_is_planned_for_usual_guidance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near its first tick the passes are nearer to each other than at pure noise."""
    monkeypatch.setattr(Guidance, "showing", None)
    case = CASES["StableDiffusionImg2ImgPipeline"]
    pipe = accelerate(case.build(), speedup=2)
    with torch.no_grad():
        pipe(**case.call(0, STEPS))
    assert scale_in(report(pipe)) > 1  # type: ignore[operator]


@pytest.mark.parametrize("rescale", [0.0, 0.7], ids=["plain", "rescaled"])
@pytest.mark.parametrize("shown", [1.4, 8.0])
def test_a_run_that_is_planned_anew_is_the_one_that_was_planned_so_from_the_start(
    shown: float, rescale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rescaled guidance is corrected in steps, and not at all in plans that hold: which of both it is, its first tick may change."""
    case = CASES["StableDiffusionPipeline"]
    call = {"guidance_scale": 7.5, "guidance_rescale": rescale}
    monkeypatch.setattr(Guidance, "showing", lambda self, *_: replace(self, shown=shown))
    monkeypatch.setattr("diffcache.schedulers.guidance.UNTELLING", 1.0)  # what is told counts as it is
    found = {}
    for amplification in (None, shown, Guidance(7.5).amplification):
        pipe = accelerate(case.build(), TrajectoryConfig(speedup=2.5, amplification=amplification))
        with torch.no_grad():
            picture = pipe(**case.call(0, STEPS), **call)[0]
        told = report(pipe)
        found[amplification] = picture, told.computed_ticks, told.expected_error, told.notes
    assert torch.equal(found[None][0], found[shown][0])
    assert found[None][1:] == found[shown][1:]
    assert found[None][1:] != found[Guidance(7.5).amplification][1:]


def test_one_that_was_measured_is_counted_with_and_none_is_asked() -> None:
    measured = TrajectoryConfig(amplification=1.3)
    assert not GuidanceWatch.is_needed(measured, Guidance(3.0))
    assert GuidanceWatch.is_needed(measured, Guidance())  # of which the scale is asked
    assert GuidanceWatch.is_needed(TrajectoryConfig(), Guidance(3.0))
    assert not GuidanceWatch.is_needed(TrajectoryConfig(), Guidance(1.0))
    assert not GuidanceWatch.is_needed(EvenConfig(speedup=2), Guidance())


def loop(
    config: Any,
    guidance: float | Callable[[int], float],
    *,
    steps: Any = None,
    batched: bool = False,
    sampler: bool = False,
    is_named: bool = False,
    in_place: bool = False,
    lean: float = 0.2,
) -> Any:
    """A hand-written loop of Net with plain guidance, whose scale may depend on the step; its report.

    In place the guided output is written into what the unconditional pass has returned. With a sampler of its own it gives the noise levels, or names the noise scheduler although it does not step with it.
    """
    net = accelerate(Net(lean).eval(), config)
    noise_scheduler = steps or FlowMatchEulerDiscreteScheduler()
    noise_scheduler.set_timesteps(STEPS)
    times, sigmas = noise_scheduler.timesteps, [1 - i / STEPS for i in range(STEPS + 1)]
    gives_levels = sampler and not is_named
    known = {"sigmas": sigmas[:-1]} if gives_levels else {"noise_scheduler": noise_scheduler}
    on, off = torch.ones(SHAPE[0]), torch.zeros(SHAPE[0])
    sample = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    lerp = Tensor.lerp_ if in_place else torch.lerp
    with torch.no_grad(), denoising_run(net, STEPS, **known) as run:
        for i, t in enumerate(times):
            run.begin_step(i)
            scale = guidance(i) if callable(guidance) else guidance
            if scale == 1:
                output = net(sample, t, on)
            elif batched:
                without, guided = net(torch.cat([sample, sample]), t, torch.cat([off, on])).chunk(2)
                output = lerp(without, guided, scale)
            else:
                output = lerp(net(sample, t, off), net(sample, t, on), scale)
            if sampler:
                sample = sample + (sigmas[i + 1] - sigmas[i]) * output
            else:
                sample = noise_scheduler.step(output, t, sample)[0]
    return report(net)


def scale_in(found: Any) -> float | None:
    scale: float | None = found.records[-1].predictor.get(GUIDANCE_SCALE)
    return scale


@pytest.mark.parametrize(
    "config", [TrajectoryConfig(speedup=3), TrajectoryConfig()], ids=["speedup", "threshold"]
)
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("scale", [1.0, 3.0, 7.5])
def test_a_loop_plans_with_the_scale_that_its_first_step_shows(
    scale: float, batched: bool, config: TrajectoryConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guidance, "showing", lambda self, *_: replace(self, shown=2.5))
    monkeypatch.setattr("diffcache.schedulers.guidance.UNTELLING", 1.0)  # what is told counts as it is
    found = loop(config, scale, batched=batched)
    assert scale_in(found) == scale
    monkeypatch.setattr("diffcache.schedulers.guidance.TYPICAL_SCALE", scale)
    monkeypatch.setattr(TrajectoryConfig, "counts_guidance", False)
    told = loop(config.replace(amplification=1.0 if scale == 1 else 2.5), scale, batched=batched)
    assert scale_in(told) is None
    assert found.computed_ticks == told.computed_ticks
    assert found.expected_error == told.expected_error
    assert found.notes == told.notes


@pytest.mark.parametrize("batched", [False, True])
def test_a_loop_may_write_its_guided_output_into_what_a_pass_returned(batched: bool) -> None:
    plain, written = (
        loop(TrajectoryConfig(speedup=3), 7.5, batched=batched, in_place=written) for written in (False, True)
    )
    assert scale_in(written) == 7.5
    assert written.computed_ticks == plain.computed_ticks
    assert written.expected_error == plain.expected_error


@pytest.mark.parametrize(
    ("config", "scale", "is_told"),
    [
        (TrajectoryConfig(speedup=3), 7.5, True),
        (TrajectoryConfig(speedup=3), 1.0, False),
        (TrajectoryConfig(speedup=3, amplification=2.0), 7.5, False),
        (EvenConfig(speedup=3), 7.5, False),
    ],
)
def test_a_report_says_where_the_scale_of_guidance_was_assumed(
    config: CacheConfig, scale: float, is_told: bool
) -> None:
    found = loop(config, scale, sampler=True)
    assert (
        any("scale of guidance could not be read, and 3 is assumed" in note for note in found.notes)
        is is_told
    )


@pytest.mark.parametrize(
    "config",
    [TrajectoryConfig(speedup=2), TrajectoryConfig(speedup=2, hindsight=False), EvenConfig(speedup=2)],
)
def test_a_callback_that_changes_the_scale_of_a_pipeline_is_told_of_where_the_scale_counts(
    config: CacheConfig,
) -> None:
    def rising(pipe: Any, step: int, time: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        pipe._guidance_scale = 3.0 + step
        return tensors

    case = CASES["StableDiffusionPipeline"]
    pipe = accelerate(case.build(), config)
    call = {**case.call(0, STEPS), "guidance_scale": 3.0}
    with torch.no_grad():
        pipe(**call)
        steady = report(pipe)
        pipe(**call, callback_on_step_end=rising)
    counts = isinstance(config, TrajectoryConfig)
    assert not changes(steady)
    assert bool(changes(report(pipe))) is counts
    assert (steady.expected_error is not None) is counts
    assert report(pipe).expected_error is None


def test_easycache_measures_anew_where_a_batch_has_grown() -> None:
    """From the fifth step on one call holds both passes."""
    found = loop(EasyCacheConfig(), lambda i: 7.5 if i > 4 else 1.0, batched=True)
    assert found.num_ticks == STEPS


def test_a_schedule_in_a_loop_knows_another_scale_by_its_first_step() -> None:
    made = loop(TrajectoryConfig(speedup=3), 3.0).to_schedule()
    same, other = (loop(made, scale) for scale in (3.0, 7.5))
    assert same.computed_ticks == other.computed_ticks == made.computed_ticks
    assert same.expected_error == made.expected_error is not None
    assert other.expected_error is None
    assert any("made with a guidance scale of 3, and this run has 7.5" in note for note in other.notes)


def test_guidance_changes_the_plan() -> None:
    one, many = (loop(TrajectoryConfig(speedup=3), scale).computed_ticks for scale in (1.0, 7.5))
    assert one != many


def changes(found: Any) -> list[str]:
    return [note for note in found.notes if "the scale of guidance changes" in note]


@pytest.mark.parametrize("batched", [False, True])
def test_guidance_that_begins_later_is_counted_from_there_on(batched: bool) -> None:
    found = loop(TrajectoryConfig(speedup=2), lambda i: 7.5 if i > 4 else 1.0, batched=batched)
    assert scale_in(found) == 7.5
    usual = Guidance(7.5).amplification  # what is shown far from pure noise does not count
    configs = TrajectoryConfig(speedup=2), TrajectoryConfig(speedup=2, amplification=usual)
    ticks = [
        [t for t in loop(config, scale).computed_ticks if t > 8]
        for config, scale in zip(configs, (1.0, 7.5), strict=True)
    ]
    assert [tick for tick in found.computed_ticks if tick > 8] == ticks[1] != ticks[0]
    assert "between 1 and 7.5. The plan was made for 7.5" in changes(found)[0]


@pytest.mark.parametrize(
    "config", [TrajectoryConfig(speedup=2), TrajectoryConfig(threshold=0.2)], ids=["speedup", "threshold"]
)
@pytest.mark.parametrize(
    "scale", [lambda i: 8 - 0.3 * i, lambda i: 5.0 if i < 9 else 1.0, lambda i: 3.0 if i < 14 else 8.0],
    ids=["falls", "ends", "jumps"],
)  # fmt: skip
def test_a_scale_that_changes_is_told_and_no_error_is_expected(
    scale: Callable[[int], float], config: TrajectoryConfig
) -> None:
    found = loop(config, scale, lean=0.1)
    assert found.expected_error is None
    (note,) = changes(found)
    assert f"The plan was made for {scale(0):g}" in note
    assert not any("is expected of the result" in note for note in found.notes)


@pytest.mark.parametrize("lean", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("scale", [1.0, 3.0, 7.5])
def test_a_scale_that_stays_is_no_change_where_reused_ticks_are_corrected(scale: float, lean: float) -> None:
    found = loop(TrajectoryConfig(speedup=2), scale, lean=lean)
    assert not changes(found)
    assert found.expected_error is not None


def test_a_run_that_reused_nothing_has_nothing_to_say_of_its_scale() -> None:
    found = loop(TrajectoryConfig(threshold=1e-6), lambda i: 5.0 if i > 4 else 1.0)
    assert found.compute_fraction == 1
    assert not changes(found)


def test_a_run_that_clips_is_planned_anew_too() -> None:
    clips = DDIMScheduler(clip_sample=True)
    assert scale_in(loop(TrajectoryConfig(speedup=2), 1.0, steps=clips)) == 1


def test_in_eight_bits_the_scale_is_shown_as_well() -> None:
    assert scale_in(loop(TrajectoryConfig(speedup=3, cache_dtype="int8"), 5.0)) == pytest.approx(5, abs=0.3)


def test_a_sampler_of_its_own_shows_that_there_is_one_pass_and_no_scale() -> None:
    config = TrajectoryConfig(speedup=3)
    assert scale_in(loop(config, 1.0, sampler=True)) == 1
    assert scale_in(loop(config, 5.0, sampler=True)) is None
    assert scale_in(loop(config, 5.0, sampler=True, batched=True)) is None


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_where_no_step_is_seen_nothing_is_kept_of_what_passes_return(
    scale: float, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    at: dict[str, list[bool]] = {"first": [], "later": []}
    forward = Net.forward

    def looking(self: Net, *args: Tensor) -> Tensor:
        scope = innermost()
        run = scope.run if scope is not None else None
        for engine in run.engines.values() if run is not None else ():
            at["first" if run is not None and run.tick == 0 else "later"].append(engine.returned.is_kept)
        return forward(self, *args)

    monkeypatch.setattr(Net, "forward", looking)
    loop(TrajectoryConfig(speedup=3), scale, sampler=True, is_named=is_named)
    assert {*at["first"]} == {is_named}  # a named one may still step
    assert {*at["later"]} == {False}


def test_what_the_report_says_of_the_plan_is_said_once() -> None:
    found = loop(TrajectoryConfig(speedup=4), 7.5)
    assert len(found.notes) == len({*found.notes})
    assert sum("fewer" in note or "plain run" in note for note in found.notes) <= 1


def test_methods_that_do_not_count_guidance_choose_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffcache.engine.engine.Engine.choose_anew", None)
    assert scale_in(loop(EvenConfig(speedup=2), 3.0)) is None


class Agreed:
    """An agreement with nobody."""

    always = False

    def settle(self, decisions: Sequence[Decision]) -> list[Decision]:
        return [*decisions]


def test_processes_that_compute_together_keep_to_the_typical_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffcache.engine.runs.agreement_of", lambda module: Agreed())
    assert scale_in(loop(TrajectoryConfig(speedup=3), 1.0)) is None
