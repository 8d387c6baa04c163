"""`plan` foretells what the report tells afterwards, computes next to nothing, and leaves everything as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import StableDiffusionPAGPipeline
from language.tiny import tiny_llama
from support.harness import STEPS, counted, counting_new_tensors, part, reference, render
from support.toys import by_embeds, toy_pipeline
from zoo.noise_schedulers import with_noise_scheduler
from zoo.pipelines import CASES

from diffcache import ConfigError, TargetError, accelerate, methods, plan, report
from diffcache.config import CacheConfig
from diffcache.evals.experiments.first_call import DEEP_DENOISERS, first_calls
from diffcache.hooks.class_swap import is_swapped
from diffcache.recipes.even import EvenConfig
from diffcache.recipes.trajectory import TrajectoryConfig

STATIC: list[tuple[str, str, dict[str, Any]]] = [
    ("DiTPipeline", "uniform", {"interval": 3}),
    ("WanPipeline", "uniform", {"order": 2, "basis": "output"}),
    ("WanPipeline", "uniform", {"site": "block", "cache_dtype": "float8"}),
    ("WanPipeline-two-experts", "uniform", {}),
    ("WanPipeline", "fastercache", {"window": (-1.0, 2.0), "guidance_window": (-1.0, 2.0)}),
    ("StableDiffusionPipeline", "deepcache", {}),
    ("StableDiffusionPipeline", "fastercache", {}),
    ("StableDiffusionPipeline", "uniform", {"cache_dtype": "bfloat16"}),
    ("FluxPipeline", "taylorseer", {}),
    ("FluxPipeline-true-cfg", "uniform", {"site": "stack"}),
    ("FluxPipeline-true-cfg", "uniform", {"site": "sub-layer", "order": 2, "cache_dtype": "int8"}),
    ("LTX2Pipeline", "uniform", {"site": "stack"}),
    ("Lumina2Pipeline", "uniform", {"site": "block"}),
]
ADAPTIVE: list[tuple[str, str, dict[str, Any]]] = [
    ("WanPipeline", "easycache", {"threshold": 0.4, "warmup_steps": 0}),
    ("FluxPipeline", "teacache", {}),
    ("FluxPipeline", "fbcache", {"threshold": 0.5}),
    ("WanPipeline", "easycache", {"threshold": 0.4, "warmup_steps": 0, "per_sample": True}),
]


def config_of(method: str, options: dict[str, Any]) -> CacheConfig:
    return methods()[method](**options)


@pytest.mark.parametrize(("name", "method", "options"), STATIC, ids=str)
def test_a_static_methods_plan_is_what_its_run_does(name: str, method: str, options: dict[str, Any]) -> None:
    case, config = CASES[name], config_of(method, options)
    pipe = case.build()
    foretold = plan(pipe, config, **case.call(0, STEPS))
    told = report(run(pipe, config, name))
    assert foretold.decided == "before"
    assert foretold.cache_bytes == told.cache_bytes > 0
    assert foretold.compute_fraction == told.compute_fraction < 1
    assert torch.equal(foretold.foreseen.decisions, told.decisions)
    assert foretold.foreseen.sites == told.sites
    assert sum(site.cache_bytes for site in foretold.sites) <= foretold.cache_bytes


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"site": "block"}, {"site": "sub-layer"}], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_any_pipelines_plan_is_what_its_run_does(name: str, options: dict[str, Any]) -> None:
    config = config_of("uniform", options)
    pipe = CASES[name].build()
    try:
        foretold = plan(pipe, config, **CASES[name].call(0, STEPS))
    except TargetError as error:
        pytest.skip(str(error))
    told = report(run(pipe, config, name))
    assert foretold.cache_bytes == told.cache_bytes
    assert foretold.compute_fraction == pytest.approx(told.compute_fraction)


@pytest.mark.parametrize(("name", "method", "options"), ADAPTIVE, ids=str)
def test_an_adaptive_methods_plan_is_a_bound(name: str, method: str, options: dict[str, Any]) -> None:
    case, config = CASES[name], config_of(method, options)
    pipe = case.build()
    foretold = plan(pipe, config, **case.call(0, STEPS))
    told = report(run(pipe, config, name))
    assert told.compute_fraction <= foretold.compute_fraction
    assert 0 <= foretold.cache_bytes - told.cache_bytes <= 3 * 4 * STEPS  # three numbers for each comparison
    assert "depends on the run" in str(foretold)


def test_a_plan_for_each_sample_is_a_bound_in_a_batch_too() -> None:
    """A tick at which all samples are reused holds most: each keeps the tick's latents and those of its last computed tick."""
    case = CASES["FluxPipeline"]
    pipe = accelerate(case.build(), "easycache", threshold=0.4, warmup_steps=1, per_sample=True)
    foretold = plan(pipe, **case.call(0, STEPS, num_images_per_prompt=2))
    render(pipe, "FluxPipeline", num_images_per_prompt=2)
    told = report(pipe)
    assert told.compute_fraction < 1
    assert 0 <= foretold.cache_bytes - told.cache_bytes <= 2 * 3 * 4 * STEPS


def test_a_budgets_plan_is_the_budget() -> None:
    case = CASES["FluxPipeline"]
    foretold = plan(case.build(), EvenConfig(speedup=2), **case.call(0, STEPS))
    assert f"{STEPS // 2} of {STEPS} ticks, 50.0% of the work" in str(foretold)
    assert foretold.compute_fraction == 0.5


def test_a_speed_up_is_planned_as_accelerate_would_follow_it() -> None:
    case = CASES["FluxPipeline"]
    pipe = case.build()
    foretold = plan(pipe, speedup=2, **case.call(0, STEPS))
    assert str(foretold) == str(plan(pipe, TrajectoryConfig(speedup=2), **case.call(0, STEPS)))
    accelerate(pipe, "easycache")
    assert str(plan(pipe, speedup=2, **case.call(0, STEPS))) == str(foretold)
    with pytest.raises(ConfigError, match="quality= goes alone"):
        plan(pipe, "easycache", speedup=2, **case.call(0, STEPS))


def run(pipe: Any, config: CacheConfig, name: str) -> Any:
    render(accelerate(pipe, config), name)
    return pipe


@pytest.mark.parametrize(("site", "passes"), [("model", 1), ("sub-layer", 2)])
def test_a_plan_costs_a_denoiser_call_or_two_and_stores_nothing(site: str, passes: int) -> None:
    case = CASES["WanPipeline"]
    pipe = case.build()
    with counting_new_tensors() as new:
        pipe(**case.call(0, STEPS))
        usual = new.shapes()
    with counted(pipe, case.denoisers) as calls, counting_new_tensors() as new:
        told = plan(pipe, config_of("uniform", {"site": site}), **case.call(0, STEPS))
        left = new.shapes()
    assert calls["transformer"] == passes
    assert told.cache_bytes > 0
    assert not left - usual


def test_a_target_is_left_as_it_was() -> None:
    case = CASES["FluxPipeline"]
    pipe, call = case.build(), case.call(0, STEPS)
    plan(pipe, config_of("uniform", {"site": "sub-layer"}), **call)
    assert not any(is_swapped(one) for one in (pipe, pipe.scheduler, *pipe.transformer.modules()))
    assert torch.equal(
        case.image(pipe(**call)), reference("FluxPipeline")
    )  # the generator has not been used up


@pytest.mark.parametrize("name", ["FluxPipeline", "FluxModularPipeline", "StableDiffusionPipeline"])
def test_a_plan_draws_no_global_random_numbers_and_takes_back_none(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is drawn while the loop is being gone through stands for another thread."""
    pipe, states = CASES[name].build(), list[torch.Tensor]()
    call = {key: value for key, value in CASES[name].call(0, STEPS).items() if key != "generator"}
    state = torch.get_rng_state()
    plan(pipe, "uniform", **call)
    assert torch.equal(torch.get_rng_state(), state)
    own = type(pipe.scheduler).set_timesteps

    def set_timesteps(*args: Any, **kwargs: Any) -> None:
        torch.rand(8)
        states.append(torch.get_rng_state())
        own(*args, **kwargs)

    monkeypatch.setattr(type(pipe.scheduler), "set_timesteps", set_timesteps)
    plan(pipe, "uniform", **call)
    assert torch.equal(torch.get_rng_state(), states[-1])


def test_attention_processors_that_a_loop_swaps_for_a_while_are_put_back() -> None:
    """Perturbed-attention guidance does, and a rehearsal does not go on to the end of the loop."""
    parts = ("vae", "text_encoder", "tokenizer", "unet", "scheduler")
    components = CASES["StableDiffusionPipeline"].build().components
    pipe = StableDiffusionPAGPipeline(
        **{name: components[name] for name in parts},
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
        pag_applied_layers=["mid"],
    )
    before = pipe.unet.attn_processors
    plan(pipe, config_of("uniform", {}), **CASES["StableDiffusionPipeline"].call(0, STEPS))
    assert all(pipe.unet.attn_processors[name] is processor for name, processor in before.items())


def test_an_option_of_the_call_that_adds_noise_is_foretold() -> None:
    case = CASES["StableDiffusionPipeline"]
    pipe, call = with_noise_scheduler(case.build(), "DDIM"), {**case.call(0, 16), "eta": 1.0}
    foretold = plan(pipe, TrajectoryConfig(speedup=1.5), **call)
    accelerate(pipe, speedup=1.5)(**call)
    assert foretold.foreseen.computed_ticks == report(pipe).computed_ticks
    assert foretold.cache_bytes == report(pipe).cache_bytes


def test_an_accelerated_target_keeps_its_method_and_its_report() -> None:
    case = CASES["WanPipeline"]
    pipe = run(case.build(), config_of("uniform", {"interval": 3}), "WanPipeline")
    before, told = report(pipe).records, plan(pipe, **case.call(0, STEPS))
    assert (told.method, told.options["interval"]) == ("uniform", 3)
    assert report(pipe).records is not before
    assert report(pipe).records == before
    assert is_swapped(part(pipe, "transformer"))


def test_a_loop_of_ones_own_is_planned_from_one_call() -> None:
    net = CASES["WanPipeline"].build().transformer
    seen: dict[str, Any] = {}
    handle = net.register_forward_pre_hook(lambda module, args, kwargs: seen.update(kwargs), with_kwargs=True)
    with torch.no_grad():
        CASES["WanPipeline"].render(_with(net), 0, 1)
    handle.remove()
    told = plan(net, config_of("uniform", {"interval": 3}), num_steps=7, **seen)
    assert told.foreseen.computed_ticks == [0, 3, 6]
    default = plan(net, num_steps=7, **seen)  # whose scale of guidance the first step tells
    assert (default.decided, default.foreseen.computed_ticks) == ("in", [*range(7)])
    for wrong in ({}, {**seen, "prompt": "a fox"}):
        with pytest.raises(ConfigError, match=r"as your loop does .*: pass its arguments beside num_steps="):
            plan(net, num_steps=7, **wrong)
    with pytest.raises(TargetError, match="num_steps"):
        plan(net, **seen)
    for steps in (0, 2.5, True, None):
        with pytest.raises(TargetError, match="plan needs a whole number of steps"):
            plan(net, num_steps=steps, **seen)
    with pytest.raises(TargetError, match="sigmas="):
        plan(net, num_steps=7, sigmas=[1.0, 0.5], **seen)


def _with(net: Any) -> Any:
    pipe = CASES["WanPipeline"].build()
    pipe.transformer = net
    return pipe


def test_conditioning_that_is_made_anew_at_each_step_is_foretold() -> None:
    call = {"embeds": by_embeds(), "remade": True, "contexts": False}
    pipe, config = toy_pipeline(), config_of("uniform", {"interval": 2})
    foretold = plan(pipe, config, **call)
    accelerate(pipe, config)(**call)
    assert foretold.cache_bytes == report(pipe).cache_bytes
    assert "told apart by their conditioning" in str(foretold)


def test_a_plan_says_in_a_few_lines_what_will_be() -> None:
    case = CASES["DiTPipeline"]
    config = config_of("uniform", {"site": "feed-forward", "watch_bound": 0.5, "cache_dtype": "int8"})
    lines = str(plan(case.build(), config, **case.call(0, STEPS))).splitlines()
    assert len(lines) == 5
    assert "feed-forward x 4" in lines[1]
    assert "both guidance passes in one call" in lines[2]
    assert "at least" in lines[3]
    assert "int8" in lines[4]


def test_accelerate_says_what_is_known_before_any_call(capsys: pytest.CaptureFixture[str]) -> None:
    accelerate(CASES["FluxPipeline"].build(), "taylorseer", cache_dtype="int8", verbose=True)
    said = capsys.readouterr().out
    assert "transformer: sub-layer" in said
    assert "features int8" in said
    assert "plan(" in said


def test_a_language_model_has_no_plan() -> None:
    with pytest.raises(TargetError, match="report"):
        plan(tiny_llama())


@pytest.mark.slow
@pytest.mark.parametrize("cache_dtype", [None, "int8"])
@pytest.mark.parametrize("name", DEEP_DENOISERS)
def test_a_plan_counts_what_a_first_call_needs(name: str, cache_dtype: str | None) -> None:
    """At least what a first call takes beyond a plain one, and at most twice that."""
    denoiser = DEEP_DENOISERS[name]
    net, arguments = denoiser.build().eval(), denoiser.arguments()
    for one in first_calls(denoiser, cache_dtype=cache_dtype):
        config = config_of("uniform", {"site": one.site, "cache_dtype": cache_dtype})
        planned = plan(net, config, num_steps=4, **arguments).first_call_bytes
        measured = one.learning - one.plain
        assert measured <= planned <= 2 * measured, one
    assert "first call" in str(plan(net, config, num_steps=4, **arguments))


def test_the_second_pass_begins_beside_what_the_first_has_stored() -> None:
    case = CASES["FluxPipeline-true-cfg"]
    config = config_of("uniform", {"site": "block"})
    both = plan(case.build(), config, **case.call(0, STEPS))
    assert both.first_call_bytes == both.cache_bytes > 0


@pytest.mark.parametrize(
    ("config", "scale", "is_said"),
    [
        (TrajectoryConfig(), 5.0, True),
        (TrajectoryConfig(), 1.0, False),
        (TrajectoryConfig(amplification=2.0), 5.0, False),
        (EvenConfig(speedup=2), 5.0, False),
    ],
)
def test_a_plan_for_usual_guidance_says_so(config: CacheConfig, scale: float, is_said: bool) -> None:
    case = CASES["WanPipeline"]
    found = plan(case.build(), config, **{**case.call(0, 8), "guidance_scale": scale})
    assert any("for usual guidance" in note for note in found.notes) is is_said


def test_image_to_image_is_not_planned_anew_and_its_plan_says_nothing_of_it() -> None:
    case = CASES["StableDiffusionImg2ImgPipeline"]
    found = plan(case.build(), TrajectoryConfig(speedup=2), **case.call(0, 8))
    assert not any("for usual guidance" in note for note in found.notes)


@pytest.mark.parametrize("guard", [{"warmup_steps": 6}, {"speedup": 4, "max_consecutive_reuses": 1}])
@pytest.mark.parametrize("config", [TrajectoryConfig, EvenConfig])
def test_guards_that_compute_more_than_the_speed_up_allows_count(
    config: type[CacheConfig], guard: dict[str, Any]
) -> None:
    case, asked = CASES["WanPipeline"], config(**{"speedup": 2, **guard})
    found = plan(case.build(), asked, **case.call(0, 8, guidance_scale=1.0))
    pipe = accelerate(case.build(), asked)
    case.render(pipe, 0, 8, guidance_scale=1.0)
    assert found.compute_fraction == report(pipe).compute_fraction > 1 / asked.speedup  # type: ignore[attr-defined]
