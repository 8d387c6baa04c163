"""Attaching and detaching: all or nothing, invisible from outside, and undone without a trace."""

from __future__ import annotations

import gc
import inspect
import logging
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import (
    FasterCacheConfig,
    FirstBlockCacheConfig,
    MagCacheConfig,
    PyramidAttentionBroadcastConfig,
    TaylorSeerCacheConfig,
)
from diffusers.hooks import apply_first_block_cache
from support.harness import STEPS, accelerated, counted, plain, reference, render, reused, reweighted
from support.toys import ToyDenoiser, ToyPipeline, ToyScheduler, by_embeds, toy_pipeline
from torch import nn
from zoo.pipelines import CASES

from diffcache import (
    ConfigError,
    TargetError,
    UniformConfig,
    accelerate,
    denoising_run,
    paused,
    plan,
    report,
    restore,
)
from diffcache.hooks.class_swap import is_swapped

NAMES = ["WanPipeline-two-experts", "StableDiffusionPipeline", "FluxModularPipeline", "LTX2Pipeline"]


def looks(pipe: Any) -> dict[str, Any]:
    """What can be seen of a pipeline and its components from outside."""
    seen = {}
    for name, thing in {"pipeline": pipe, **pipe.components}.items():
        cls = type(thing)
        signatures = [
            inspect.signature(getattr(thing, f)) for f in ("__call__", "forward") if hasattr(thing, f)
        ]
        seen[name] = (cls.__name__, cls.__qualname__, cls.__module__, cls.__doc__, signatures, repr(thing))
        seen[f"{name}.__dict__"] = {key: id(value) for key, value in vars(thing).items()} if thing else {}
    return seen


def classes(pipe: Any) -> dict[str, type]:
    return {name: type(thing) for name, thing in {"pipeline": pipe, **pipe.components}.items()}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_seen_from_outside(name: str) -> None:
    pipe = CASES[name].build()
    before, own = looks(pipe), classes(pipe)
    accelerate(pipe, "uniform")
    once = classes(pipe)
    assert looks(pipe) == before
    assert all(issubclass(once[key], own[key]) for key in own)
    accelerate(pipe, "easycache")
    assert classes(pipe) == once
    restore(pipe)
    assert looks(pipe) == before
    assert classes(pipe) == own
    restore(pipe)
    assert classes(pipe) == own


def test_accelerating_again_replaces_the_method() -> None:
    name = "WanPipeline"
    pipe = CASES[name].build()
    for interval in (2, 3):
        accelerate(pipe, "uniform", interval=interval)
        assert report(pipe).notes == ["no run yet"]
        image = render(pipe, name)
        assert report(pipe).computed_ticks == [*range(0, STEPS, interval), STEPS - 1]
        assert torch.equal(image, render(accelerated(name, "uniform", interval=interval), name))
    accelerate(pipe, "easycache", threshold=0)
    assert torch.equal(render(pipe, name), reference(name))
    assert report(pipe).method == "easycache"


def test_only_the_components_that_are_named_are_cached() -> None:
    name = "WanPipeline-two-experts"
    pipe = CASES[name].build()
    own = classes(pipe)
    for component in ("transformer", "transformer_2"):
        accelerate(pipe, "uniform", components=(component,))
        changed = {key for key, cls in classes(pipe).items() if cls is not own[key]}
        assert changed == {"pipeline", component}
        render(pipe, name)
        assert set(report(pipe).records[0].models) == {component}
        assert {site.denoiser for site in plan(pipe, **CASES[name].call(0, STEPS)).sites} == {component}


@pytest.mark.parametrize("components", [(), ("vae",), ("transformer", "unknown")], ids=str)
def test_components_that_are_no_denoisers_are_refused(components: tuple[str, ...]) -> None:
    pipe = accelerated("WanPipeline-two-experts", "uniform")
    own = classes(pipe)
    with pytest.raises(TargetError, match=r"a tuple of names among \['transformer', 'transformer_2'\]"):
        accelerate(pipe, "easycache", components=components)
    assert classes(pipe) == own
    assert report(pipe).method == "uniform"
    with pytest.raises(TargetError, match="leave it out"):
        accelerate(pipe.transformer, "uniform", components=("transformer",))


@pytest.mark.parametrize("name", ["StableDiffusionPipeline", "WanPipeline-two-experts", "FluxPipeline"])
def test_saved_files_are_the_same(name: str, tmp_path: Path) -> None:
    def saved(pipe: Any, folder: str) -> dict[str, bytes]:
        pipe.save_pretrained(tmp_path / folder)
        files = (tmp_path / folder).rglob("*")
        return {str(f.relative_to(tmp_path / folder)): f.read_bytes() for f in files if f.is_file()}

    pipe = CASES[name].build()
    before = saved(pipe, "before")
    accelerate(pipe, "uniform")
    render(pipe, name, steps=2)
    assert saved(pipe, "accelerated") == before
    assert saved(restore(pipe), "restored") == before
    module = pipe.components[CASES[name].denoisers[0]]
    loaded = type(module).from_pretrained(tmp_path / "accelerated" / CASES[name].denoisers[0])
    assert type(loaded) is type(module)


# -- all or nothing -----------------------------------------------------------------------------------------------


def final(base: type, error: type[Exception]) -> type:
    """A class that refuses to be subclassed."""

    def refuse(cls: type, **kwargs: Any) -> None:
        raise error("final")

    members = {"__init_subclass__": classmethod(refuse), "__module__": base.__module__}
    return type(base)(base.__name__, (base,), members)


@pytest.mark.parametrize("error", [TypeError, RuntimeError])
@pytest.mark.parametrize("component", ["transformer", "transformer_2", "pipeline"])
def test_a_failure_half_way_leaves_nothing_behind(component: str, error: type[Exception]) -> None:
    name = "WanPipeline-two-experts"
    pipe = CASES[name].build()
    part = pipe if component == "pipeline" else pipe.components[component]
    part.__class__ = final(type(part), error)
    before, own = looks(pipe), classes(pipe)
    with pytest.raises((TargetError, error)):
        accelerate(pipe, "uniform")
    assert looks(pipe) == before
    assert classes(pipe) == own
    with pytest.raises(ValueError, match="not accelerated"):
        report(pipe)
    assert torch.equal(render(pipe, name), reference(name))


@pytest.mark.parametrize("error", [TypeError, RuntimeError])
def test_a_failing_replacement_keeps_the_method_that_was_there(error: type[Exception]) -> None:
    name = "WanPipeline-two-experts"
    pipe = accelerated(name, "uniform", interval=2)
    expected = render(pipe, name)
    kept, own = pipe.transformer_2, classes(pipe)
    other = reweighted(plain(name).transformer)
    other.__class__ = final(type(other), error)
    pipe.transformer_2 = other
    with pytest.raises((TargetError, error)):
        accelerate(pipe, "easycache")
    with pytest.raises((TargetError, error)):
        render(pipe, name)  # never silently without the cache
    pipe.transformer_2 = kept
    assert classes(pipe) == own
    assert torch.equal(render(pipe, name), expected)
    assert report(pipe).method == "uniform"


@pytest.mark.parametrize(
    ("config", "options", "error"),
    [
        ("easycach", {}, ConfigError),
        ("easycache", {"threshold": -1}, ConfigError),
        ("easycache", {"threshold": float("nan")}, ConfigError),
        ("easycache", {"interval": 2}, ConfigError),
        ("uniform", {"interval": 0}, ConfigError),
        ("uniform", {"interval": 2.0}, ConfigError),
        ("uniform", {"order": 3}, ConfigError),
        (None, {"no_such_option": 1}, ConfigError),
        (UniformConfig(), {"threshold": 1}, ConfigError),
        (7, {}, ConfigError),
    ],
)
def test_mistakes_are_one_sentence_and_leave_the_pipeline_alone(
    config: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    pipe = toy_pipeline()
    own = classes(pipe)
    with pytest.raises(error) as caught:
        accelerate(pipe, config, **options)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)
    assert classes(pipe) == own
    accelerate(pipe, "uniform")
    with pytest.raises(error):
        accelerate(pipe, config, **options)
    assert report(pipe).method == "uniform"


@pytest.mark.parametrize(
    "target", [object(), None, "pipe", {}, nn.Linear], ids=lambda target: type(target).__name__
)
def test_what_is_no_pipeline_is_refused(target: Any) -> None:
    for function in (accelerate, report):
        with pytest.raises(TargetError):
            function(target)
    assert restore(target) is target


def test_a_pipeline_without_a_denoiser_is_refused() -> None:
    pipe = CASES["FluxModularPipeline"].build()
    pipe.update_components(transformer=None)
    with pytest.raises(TargetError, match=r"no denoiser loaded .*load transformer first"):
        accelerate(pipe)


def test_a_pipeline_whose_networks_take_no_time_is_refused() -> None:
    pipe = toy_pipeline()
    pipe.transformer = nn.Linear(2, 2)
    with pytest.raises(TargetError, match="its networks do the same at every noise level"):
        accelerate(pipe)


# -- other caches -------------------------------------------------------------------------------------------------

CACHES: dict[str, Callable[[Any], Any]] = {
    "first-block": lambda pipe: FirstBlockCacheConfig(threshold=0.1),
    "pyramid-attention": lambda pipe: PyramidAttentionBroadcastConfig(
        spatial_attention_block_skip_range=2, current_timestep_callback=lambda: 500
    ),
    "faster": lambda pipe: FasterCacheConfig(
        spatial_attention_block_skip_range=2, current_timestep_callback=lambda: 500
    ),
    "mag": lambda pipe: MagCacheConfig(num_inference_steps=STEPS, mag_ratios=[1.0] * STEPS),
    "taylorseer": lambda pipe: TaylorSeerCacheConfig(),
}


@pytest.mark.parametrize("cache", CACHES)
def test_a_diffusers_cache_before_is_refused(cache: str) -> None:
    pipe = CASES["FluxPipeline"].build()
    own = classes(pipe)
    pipe.transformer.enable_cache(CACHES[cache](pipe))
    with pytest.raises(TargetError, match="disable_cache"):
        accelerate(pipe)
    assert classes(pipe) == own
    pipe.transformer.disable_cache()
    accelerate(pipe, "easycache", threshold=0)
    assert torch.equal(render(pipe, "FluxPipeline"), reference("FluxPipeline"))


@pytest.mark.parametrize("cache", CACHES)
def test_a_diffusers_cache_after_is_refused_at_the_next_run(cache: str) -> None:
    pipe = accelerated("FluxPipeline", "easycache", threshold=0)
    pipe.transformer.enable_cache(CACHES[cache](pipe))
    with pytest.raises(TargetError, match="disable_cache"):
        render(pipe, "FluxPipeline")
    pipe.transformer.disable_cache()
    assert torch.equal(render(pipe, "FluxPipeline"), reference("FluxPipeline"))


def test_a_diffusers_cache_that_was_applied_by_hand_is_refused() -> None:
    pipe = CASES["FluxPipeline"].build()
    apply_first_block_cache(pipe.transformer, FirstBlockCacheConfig(threshold=0.1))
    with pytest.raises(TargetError):
        accelerate(pipe)


def test_a_diffusers_cache_that_was_applied_by_hand_between_runs_is_refused_at_the_next_one() -> None:
    pipe = accelerated("FluxPipeline", "easycache", threshold=0)
    render(pipe, "FluxPipeline")
    apply_first_block_cache(pipe.transformer, FirstBlockCacheConfig(threshold=0.1))
    with pytest.raises(TargetError, match="disable_cache"):
        render(pipe, "FluxPipeline")


# -- components replaced, pauses, restore in odd places -----------------------------------------------------------


def test_a_denoiser_that_is_replaced_is_followed() -> None:
    name = "WanPipeline"
    pipe = accelerated(name, "uniform", interval=2)
    render(pipe, name)
    old, new = pipe.transformer, reweighted(plain(name).transformer)
    own = type(new)
    pipe.register_modules(transformer=new)
    with counted(pipe, ("transformer",)) as calls:
        image = render(pipe, name)
    fresh = CASES[name].build()
    fresh.transformer = reweighted(plain(name).transformer)
    assert torch.equal(image, render(accelerate(fresh, "uniform", interval=2), name))
    assert calls.total() == len(report(pipe).calls) - reused(pipe) < 2 * STEPS
    restore(pipe)
    assert type(old) is type(new) is own


class Wrapper(nn.Module):
    """Hides what it wraps, as PEFT's models do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner.forward(*args, **kwargs)


def test_a_pipeline_whose_denoiser_is_wrapped_later_runs_as_it_would_by_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    case = CASES["FluxPipeline"]
    full = case.render(case.build())
    pipe = accelerate(case.build(), speedup=2)
    case.render(pipe)
    pipe.transformer = Wrapper(pipe.transformer)
    with caplog.at_level(logging.WARNING, logger="diffcache"):
        assert torch.equal(case.render(pipe), full)
    assert "transformer is a Wrapper, whose forward names no argument" in caplog.text
    with pytest.raises(TargetError, match="put the network that it wraps into the pipeline"):
        accelerate(pipe)


def test_a_wrapped_denoiser_beside_another_is_named_in_the_report() -> None:
    case = CASES["WanPipeline-two-experts"]
    pipe = case.build()
    pipe.transformer_2 = Wrapper(pipe.transformer_2)
    case.render(accelerate(pipe, speedup=2))
    assert "transformer_2: not cached, and its calls are not counted" in report(pipe).notes


def test_paused_computes_everything_and_leaves_the_report() -> None:
    name = "StableDiffusionPipeline"
    pipe = accelerated(name, "uniform", interval=2)
    image = render(pipe, name)
    decisions = report(pipe).decisions
    for target in (pipe, pipe.unet):
        with paused(target), paused(target):
            assert torch.equal(render(pipe, name, seed=1), reference(name, seed=1))
        with pytest.raises(KeyError), paused(target):
            raise KeyError
        assert report(pipe).decisions.equal(decisions)
    assert torch.equal(render(pipe, name), image)
    with pytest.raises(TargetError):
        paused(plain(name)).__enter__()


@pytest.mark.parametrize("change", [restore, lambda pipe: accelerate(pipe, "uniform", interval=4)])
def test_changing_the_cache_in_a_callback(change: Callable[[Any], Any]) -> None:
    def callback(pipe: Any, step: int, timestep: Any, kwargs: Any) -> None:
        if step == 2:
            change(pipe)

    pipe = accelerate(toy_pipeline(), "uniform", interval=2)
    assert torch.equal(pipe(by_embeds(), callback_on_step_end=callback), toy_pipeline()(by_embeds()))
    assert torch.equal(pipe(by_embeds()), toy_pipeline()(by_embeds()))
    assert type(restore(pipe)) is type(toy_pipeline())
    assert type(pipe.transformer) is type(toy_pipeline().transformer)
    assert type(pipe.scheduler) is type(toy_pipeline().scheduler)


def test_the_report_names_the_method_that_ran() -> None:
    """Another one was attached by a callback in the middle of the call."""

    def callback(pipe: Any, step: int, timestep: Any, kwargs: Any) -> None:
        if step == 2:
            accelerate(pipe, "easycache", threshold=0.5)

    pipe = accelerate(toy_pipeline(), "uniform", interval=4)
    pipe(by_embeds(), callback_on_step_end=callback)
    told = report(pipe)
    assert (told.method, told.options["interval"]) == ("uniform", 4)
    assert told.computed_ticks == [0, 4, 7]
    assert told.notes == ["easycache was attached during this call: it runs from the next one on"]
    pipe(by_embeds())
    assert (report(pipe).method, report(pipe).notes) == ("easycache", [])
    assert report(accelerate(pipe, "uniform")).notes == ["no run yet"]


class Retrying(ToyPipeline):
    """Calls itself again, as a retry does."""

    def __call__(self, *args: Any, again: bool = True, **kwargs: Any) -> Any:
        return self(*args, again=False, **kwargs) if again else super().__call__(*args, **kwargs)


def test_the_report_of_a_pipeline_that_calls_itself_is_the_inner_calls() -> None:
    pipe = accelerate(Retrying(ToyDenoiser().eval(), ToyScheduler()), "uniform", interval=4)
    for _ in range(2):
        pipe(by_embeds())
        assert report(pipe).computed_ticks == [0, 4, 7]


def test_a_call_that_fails_before_its_loop_leaves_an_empty_report() -> None:
    pipe = accelerate(toy_pipeline(), "uniform", interval=4)
    pipe(by_embeds())
    with pytest.raises(TypeError):
        pipe()
    assert report(pipe).notes == ["no run yet"]


def test_the_report_of_a_loop_names_the_method_that_ran() -> None:
    net = accelerate(ToyDenoiser().eval(), "uniform", interval=4)
    with torch.no_grad(), denoising_run(net, 8) as run:
        for i in range(8):
            run.begin_step(i)
            net(torch.ones(1, 2, 4), torch.ones(1))
            if i == 5:
                accelerate(net, "easycache")
    assert report(net).method == "uniform"
    assert report(net).computed_ticks == [0, 4, 7]


def test_an_accelerated_pipeline_can_be_collected() -> None:
    pipe = accelerate(toy_pipeline(), "uniform", interval=2)
    net = pipe.transformer
    pipe(by_embeds())
    gone = weakref.ref(pipe)
    del pipe
    gc.collect()
    assert gone() is None
    assert torch.equal(toy_pipeline(net)(by_embeds()), toy_pipeline()(by_embeds()))


@pytest.mark.parametrize("through", [lambda net: net, toy_pipeline], ids=["denoiser", "another pipeline"])
def test_restore_gives_the_classes_back_that_a_collected_pipeline_has_left(
    through: Callable[[Any], Any],
) -> None:
    pipe = accelerate(CASES["FluxPipeline"].build(), "fora")
    net = pipe.transformer
    assert any(map(is_swapped, net.modules()))
    del pipe
    gc.collect()
    restore(through(net))
    assert not any(map(is_swapped, net.modules()))


def test_restore_leaves_a_denoiser_alone_that_others_have_accelerated() -> None:
    pipe = accelerate(toy_pipeline(), "uniform", interval=2)
    restore(toy_pipeline(pipe.transformer))
    assert is_swapped(pipe.transformer)
