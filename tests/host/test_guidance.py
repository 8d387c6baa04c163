"""The scale of guidance, and what else guidance makes of its passes, as each pipeline has it."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import diffusers
import pytest
from diffusers.configuration_utils import FrozenDict
from diffusers.guiders import ClassifierFreeGuidance
from torch import nn
from zoo.pipelines import CASES as PIPELINES

from diffcache import accelerate, plan
from diffcache.config import RunFacts
from diffcache.host import guidance
from diffcache.host.guidance import guidance_scale_during, guidance_scale_of, kept_scales_of, norm_kept_along
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.schedulers.base import CacheScheduler


class TakesScales:
    """A pipeline that takes scales of guidance."""

    def __call__(
        self,
        prompt: str = "",
        guidance_scale: float = 7.5,
        true_cfg_scale: float | None = None,
        guidance_rescale: float = 9.0,
    ) -> None: ...


class Guided(TakesScales):
    """One that guides by two passes."""

    do_classifier_free_guidance = True


@pytest.mark.parametrize(
    ("call", "scale"),
    [
        ({}, 7.5),
        ({"guidance_scale": 3}, 3.0),
        ({"guidance_scale": 3.0, "true_cfg_scale": 4.0}, 4.0),
        ({"guidance_scale": None}, None),
    ],
)
def test_the_largest_scale_of_guidance_is_found_in_a_call_and_its_defaults(
    call: dict[str, Any], scale: float | None
) -> None:
    assert guidance_scale_of(Guided(), call) == scale


def test_a_pipeline_without_guidance_has_a_scale_of_1_unless_a_guider_knows_it() -> None:
    plain = type("Plain", (), {"__call__": lambda self, prompt: None})()
    assert guidance_scale_of(plain, {}) == 1
    plain.guider = object()
    assert guidance_scale_of(plain, {}) is None


@pytest.mark.parametrize(
    ("options", "scale"),
    [
        ({"guidance_scale": 6.0}, 6.0),
        ({"guidance_scale": 6.0, "use_original_formulation": True}, 7.0),
        ({"guidance_scale": 6.0, "enabled": False}, 1.0),
    ],
)
def test_a_guider_tells_its_scale(options: dict[str, Any], scale: float) -> None:
    guided = type("Modular", (), {"__call__": lambda self, prompt: None})()
    guided.guider = ClassifierFreeGuidance(**options)
    assert guidance_scale_of(guided, {}) == scale
    assert kept_scales_of(guided)["guidance_scale"] == 6
    guided.guider.guidance_scale = 2.0
    assert kept_scales_of(guided)["guidance_scale"] == 2


@pytest.mark.parametrize(
    ("name", "call", "along"),
    [
        ("Lumina2Pipeline", {}, -1),
        ("Lumina2Pipeline", {"cfg_normalization": False}, None),
        ("LongCatImagePipeline", {}, -1),
        ("QwenImageEditPipeline", {}, -1),
        ("JoyImageEditPipeline", {}, 2),
        ("ZImagePipeline", {"cfg_normalization": True}, None),
        ("StableDiffusion3Pipeline", {}, None),
    ],
)
def test_a_call_tells_whether_guidance_keeps_the_norm(
    name: str, call: dict[str, Any], along: int | None
) -> None:
    cls = getattr(diffusers, name)
    assert norm_kept_along(cls.__new__(cls), call) == along


def test_the_pipelines_that_keep_the_norm_are_those_of_these_names() -> None:
    names = (name for name in dir(diffusers) if name.endswith("Pipeline") and "Modular" not in name)
    classes = [cls for name in names if inspect.isclass(cls := getattr(diffusers, name))]
    written = {cls for cls in classes if "cond_norm" in inspect.getsource(inspect.getmodule(cls) or cls)}
    assert written == {cls for cls in classes if norm_kept_along(cls.__new__(cls), {}) is not None}


def test_the_scale_of_a_call_reaches_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    case, seen = PIPELINES["StableDiffusionPipeline"], []
    pipe = accelerate(case.build(), speedup=2)
    monkeypatch.setattr(TrajectoryConfig, "remark", lambda self, run: seen.append(run.guidance.scale))
    pipe(**{**case.call(0, 4), "guidance_scale": 6.5})
    plan(pipe, **{**case.call(0, 4), "guidance_scale": 2.5})
    assert {*seen} == {6.5, 2.5}


class Network(nn.Module):
    """One that may be told its guidance."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(guidance_embeds=True)


class Distilled(TakesScales):
    """A pipeline of a network that is told its guidance."""

    transformer = Network()


@pytest.mark.parametrize(
    ("call", "scale"),
    [
        ({"guidance_scale": 3.5}, 1.0),
        ({"guidance_scale": 3.5, "true_cfg_scale": 4.0}, 1.0),
        ({"guidance_scale": 5.5, "true_cfg_scale": 4.0, "negative_prompt": ""}, 4.0),
    ],
)
def test_a_scale_that_the_network_is_told_guides_nothing(
    call: dict[str, Any], scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guidance, "modules_of", lambda pipeline: [pipeline.transformer])
    assert guidance_scale_of(Distilled(), call) == scale


@pytest.mark.parametrize(
    ("name", "embeds", "call", "scale"),
    [
        ("SanaPipeline", False, {"guidance_scale": 4.5}, 4.5),
        ("SanaSprintPipeline", True, {"guidance_scale": 4.5}, 1.0),
        ("BriaFiboPipeline", False, {"guidance_scale": 4.5}, 4.5),
        ("FluxPipeline", False, {"guidance_scale": 4.5}, 1.0),
        ("FluxPipeline", False, {"true_cfg_scale": 3.0, "negative_prompt": ""}, 3.0),
        ("FluxFillPipeline", True, {"guidance_scale": 30.0}, 1.0),
        ("Flux2KleinPipeline", False, {"guidance_scale": 4.5}, 4.5),
        ("Flux2KleinPipeline-distilled", False, {"guidance_scale": 4.5}, 1.0),
        ("ZImagePipeline", False, {"guidance_scale": 4.0}, 5.0),
        ("Cosmos2TextToImagePipeline", False, {"guidance_scale": 7.0}, 8.0),
    ],
)
def test_the_scale_is_read_as_each_pipeline_guides(
    name: str, embeds: bool, call: dict[str, Any], scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = getattr(diffusers, name.removesuffix("-distilled"))
    pipe = kind.__new__(kind)
    pipe.__dict__["_internal_dict"] = FrozenDict(is_distilled=name.endswith("distilled"))
    network = Network()
    network.config.guidance_embeds = embeds
    monkeypatch.setattr(guidance, "modules_of", lambda pipeline: [network])
    assert guidance_scale_of(pipe, call) == scale


class Wrapped(diffusers.StableDiffusionPipeline):  # type: ignore[misc] # diffusers has no types
    """Names none of its arguments."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class Renamed(diffusers.StableDiffusionPipeline):  # type: ignore[misc]
    """Names its scale of guidance as nobody does."""

    def __call__(self, prompt: Any = None, strength: float = 1.0, **kwargs: Any) -> Any:
        return super().__call__(prompt, guidance_scale=strength, **kwargs)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (diffusers.StableDiffusionPipeline, "guidance_scale"),
        (Wrapped, "guidance_scale"),
        (Renamed, "strength"),
    ],
)
def test_a_scale_that_the_arguments_do_not_tell_is_read_during_the_call(
    kind: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scales = list[float | None]()
    real = TrajectoryConfig.scheduler

    def scheduler(config: TrajectoryConfig, run: RunFacts) -> CacheScheduler:
        scales.append(run.guidance.scale)
        return real(config, run)

    monkeypatch.setattr(TrajectoryConfig, "scheduler", scheduler)
    case = PIPELINES["StableDiffusionPipeline"]
    pipe = accelerate(kind(**case.build().components, requires_safety_checker=False), speedup=2)
    given = case.call(0, 8)
    given.pop("guidance_scale", None)
    pipe(**given, **{name: 6.5})
    assert scales
    assert {*scales} == {6.5}


def test_a_scale_that_nothing_tells_is_unknown() -> None:
    anything = {"__call__": lambda self, **kwargs: None}
    hidden = type("Hidden", (Guided,), anything)()
    assert guidance_scale_of(hidden, {}) is None
    assert guidance_scale_of(hidden, {"guidance_scale": 4}) == 4
    assert guidance_scale_during(hidden) is None
    assert guidance_scale_of(type("Unguided", (), anything)(), {}) == 1
