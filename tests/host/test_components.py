"""Which networks are denoisers: told by what their forward takes; in doubt they are."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import diffusers
import pytest
import torch
from diffusers.configuration_utils import FrozenDict
from diffusers.guiders import ClassifierFreeGuidance
from support.toys import ToyDenoiser, ToyPipeline, ToyScheduler, by_embeds
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel
from zoo.denoisers import CASES
from zoo.pipelines import CASES as PIPELINES

from diffcache import TargetError, accelerate, denoising_run, plan, report
from diffcache.config import RunFacts
from diffcache.host import components
from diffcache.host.components import guidance_of, guidance_scale_during, guidance_scale_of, norm_kept_along
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.schedulers.base import CacheScheduler


def vae() -> nn.Module:
    return diffusers.AutoencoderKL(block_out_channels=(32,), norm_num_groups=8)


def text_encoder() -> nn.Module:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return CLIPTextModel(CLIPTextConfig(vocab_size=16, **sizes))


NO_DENOISERS: dict[str, tuple[Any, str]] = {
    "a linear layer": (lambda: nn.Linear(2, 2), "one input"),
    "layers in a row": (lambda: nn.Sequential(nn.Linear(2, 2), nn.SiLU()), "one input"),
    "a list of layers": (lambda: nn.ModuleList([nn.Linear(2, 2)]), "no forward"),
    "a VAE": (vae, "autoencoder"),
    "an adapter": (lambda: diffusers.T2IAdapter(channels=(8,), num_res_blocks=1), "one input"),
}


@pytest.mark.parametrize("name", NO_DENOISERS)
@pytest.mark.parametrize(
    "function",
    [accelerate, plan, lambda module: denoising_run(module, 4).__enter__()],
    ids=lambda f: f.__name__,
)
def test_what_is_no_denoiser_is_refused(function: Any, name: str) -> None:
    make, why = NO_DENOISERS[name]
    module = make()
    own = type(module)
    with pytest.raises(TargetError, match=rf"{own.__name__} is no denoiser.* \(.*{why}.*\): pass") as error:
        function(module)
    assert "\n" not in str(error.value)
    assert type(module) is own
    with pytest.raises(TargetError, match="not accelerated"):
        report(module)


def test_a_text_encoder_is_refused() -> None:
    module = text_encoder()
    with pytest.raises(
        TargetError, match=r"CLIPTextModel is no denoiser.* \(its forward takes input_ids, and no time\)"
    ):
        denoising_run(module, 4).__enter__()
    for function in (accelerate, plan):
        with pytest.raises(TargetError):
            function(module)
    with pytest.raises(TargetError, match="not accelerated"):
        report(module)


def test_a_compiled_vae_is_refused_too() -> None:
    with pytest.raises(TargetError, match="AutoencoderKL is no denoiser"):
        accelerate(torch.compile(vae(), backend="eager"))


class SampleAndNoise(nn.Module):
    """Its time has a name that nobody knows."""

    def forward(self, x: Tensor, c_noise: Tensor) -> Tensor:
        return x + c_noise


class Anything(nn.Module):
    """As wrappers are."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return args[0] + args[1]


class LatentModel(nn.Module):
    """A denoiser that carries its decoder."""

    def decode(self, z: Tensor) -> Tensor:
        return z

    def forward(self, z: Tensor, t: Tensor) -> Tensor:
        return z + t


class Patched(nn.Module):
    """Its forward was set on the instance."""

    def __init__(self) -> None:
        super().__init__()
        self.forward = lambda x, c_noise: x + c_noise


@pytest.mark.parametrize("kind", [Anything, Patched])
def test_what_may_be_a_denoiser_attaches(kind: type[nn.Module]) -> None:
    assert report(accelerate(kind())).notes == ["no run yet"]


@pytest.mark.parametrize("kind", [SampleAndNoise, LatentModel])
def test_somebodys_own_denoiser_attaches_and_reuses(kind: type[nn.Module]) -> None:
    net = accelerate(kind().eval(), "uniform", interval=2)
    with torch.no_grad(), denoising_run(net, 6) as run:
        for i in range(6):
            run.begin_step(i)
            net(torch.ones(1, 4), torch.tensor(1.0))
    assert report(net).computed_ticks == [0, 2, 4, 5]


@pytest.mark.parametrize("name", CASES)
def test_every_denoiser_of_diffusers_attaches(name: str) -> None:
    net = CASES[name].build().eval()
    assert report(accelerate(net)).notes == ["no run yet"]


@pytest.mark.parametrize("attached", [True, False], ids=["accelerated", "plain"])
def test_a_loop_over_a_pipeline_names_its_denoisers(attached: bool) -> None:
    for name, parts in {
        "StableDiffusionPipeline": "pass pipe.unet.",
        "WanPipeline-two-experts": "pass pipe.transformer or pipe.transformer_2.",
    }.items():
        pipe = PIPELINES[name].build()
        if attached:
            accelerate(pipe)
        with pytest.raises(TargetError, match=f"not the pipeline around it: {parts}"), denoising_run(pipe, 4):
            pass


def test_a_loop_over_no_module_is_refused() -> None:
    with pytest.raises(TargetError, match="not a function"), denoising_run(vae, 4):  # type: ignore[arg-type]
        pass
    with denoising_run(ToyDenoiser(), 4):
        pass


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
    assert guidance_of(guided)["guidance_scale"] == 6
    guided.guider.guidance_scale = 2.0
    assert guidance_of(guided)["guidance_scale"] == 2


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
    monkeypatch.setattr(components, "modules_of", lambda pipeline: [pipeline.transformer])
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
    monkeypatch.setattr(components, "modules_of", lambda pipeline: [network])
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


def test_a_module_without_a_forward_wraps_nothing() -> None:
    class Normalizer(nn.Module):
        pass

    assert not components.is_wrapper(Normalizer())
    assert not components.is_wrapper(nn.Linear(2, 2))


class WithDefault(ToyPipeline):
    """Its noise scheduler may be left out, as LongCat-AudioDiT's: Diffusers does not list it among the `components`."""

    def __init__(self, transformer: ToyDenoiser, scheduler: ToyScheduler | None = None) -> None:
        super().__init__(transformer, scheduler or ToyScheduler())


def test_a_noise_scheduler_that_may_be_left_out_is_observed() -> None:
    pipe = WithDefault(ToyDenoiser().eval())
    pipe.set_progress_bar_config(disable=True)
    assert "scheduler" not in pipe.components
    expected = pipe(by_embeds())
    accelerate(pipe, "uniform", interval=2)
    assert torch.equal(pipe(by_embeds()), expected)
    assert report(pipe).computed_ticks == [0, 2, 4, 6, 7]
