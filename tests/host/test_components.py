"""Which networks are denoisers: told by what their forward takes; in doubt they are."""

from __future__ import annotations

import warnings
from typing import Any

import diffusers
import pytest
import torch
from support.toys import ToyDenoiser, ToyPipeline, ToyScheduler, by_embeds
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel
from zoo.denoisers import CASES
from zoo.pipelines import CASES as PIPELINES

from diffcache import TargetError, accelerate, denoising_run, plan, report, restore
from diffcache.host import components


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


@pytest.mark.parametrize("name", ["StableDiffusionPipeline", "WanPipeline", "Flux2KleinPipeline"])
def test_nothing_warns_of_what_a_pipeline_keeps_in_its_config(name: str) -> None:
    case = PIPELINES[name]
    pipe = case.build()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        accelerate(pipe, "uniform", interval=2)
        plan(pipe, **case.call(0, 2))
        case.render(pipe, steps=2)
        restore(pipe)
