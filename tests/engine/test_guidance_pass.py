"""The guidance branch as a site: the unconditional pass is rebuilt from the conditional one and a stored difference."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from diffusers import StableDiffusionPAGPipeline
from support.harness import counted
from support.toys import MARKS, ToyDenoiser, by_embeds, toy_pipeline
from torch import Tensor, nn
from zoo.pipelines import CASES

from diffcache import accelerate, denoising_run, report
from diffcache.config import Boost, CacheConfig, GuidanceRule, RunFacts
from diffcache.engine.guidance_pass import OTHER_ORDER, OTHER_SHAPES, weighted
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.interval import Interval


@dataclass(frozen=True, kw_only=True)
class OnlyGuidance(CacheConfig):
    """The conditional pass is always computed, the other one at every fourth tick."""

    name: ClassVar[str] = "only-guidance"

    tail_steps: int = 0
    boost: Boost = field(default_factory=Boost)

    def scheduler(self, run: RunFacts) -> Interval:
        return Interval(1)

    def warmup(self, run: RunFacts) -> int:
        return 1

    def guidance(self, run: RunFacts) -> GuidanceRule:
        return GuidanceRule(Interval(4), self.boost, self.boost)


@pytest.mark.parametrize("batched", [False, True])
def test_a_constant_difference_is_rebuilt_to_the_bit(batched: bool) -> None:
    """The toy's passes differ by a number that never changes, so nothing is lost; only the calls are fewer."""
    call: dict[str, Any] = {"embeds": by_embeds(), "batched": batched}
    if batched:  # the unconditional half comes first, as in Diffusers
        call["passes"] = lambda step: ("uncond", "cond")
    plain = toy_pipeline()(**call)
    pipe = accelerate(toy_pipeline(), OnlyGuidance())
    with counted(pipe, ("transformer",)) as calls:
        assert torch.equal(pipe(**call), plain)
    assert calls["transformer"] == 8 + 2
    found = report(pipe)
    assert found.compute_fraction == (8 + 2) / 16
    b, s = found.branches.index("uncond"), found.sites.index("transformer.guidance")
    assert found.decisions[:, b, s].nonzero().flatten().tolist() == [0, 4]


def test_the_difference_grows_as_told() -> None:
    call: dict[str, Any] = {"embeds": by_embeds(), "num_inference_steps": 3}
    plain, exact, grown = (toy_pipeline() for _ in range(3))
    accelerate(exact, OnlyGuidance())
    accelerate(grown, OnlyGuidance(boost=Boost(2.0, (0.5, 0.9))))
    assert torch.equal(exact(**call), plain(**call))
    # uncond - cond = -8; doubled at tick 1 (time 2/3) and kept so at tick 2: both are pushed 2 * 8 / 8 further
    assert torch.equal(grown(**call) - exact(**call), torch.full((1, 2, 4), 2.0 + 2.0))


def test_an_unconditional_pass_that_comes_first_is_computed_and_the_report_says_why() -> None:
    call: dict[str, Any] = {"embeds": by_embeds(), "passes": lambda step: ("uncond", "cond")}
    pipe = accelerate(toy_pipeline(), OnlyGuidance())
    assert torch.equal(pipe(**call), toy_pipeline()(**call))
    assert report(pipe).compute_fraction == 1
    assert OTHER_ORDER in report(pipe).reasons


@pytest.mark.parametrize(
    "name", ["WanPipeline", "FluxPipeline-true-cfg", "StableDiffusionPipeline", "LTX2Pipeline"]
)
def test_a_run_that_rebuilds_replays_exactly(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    pipe = accelerate(case.build(), "fastercache", guidance_interval=3, guidance_window=(-1, 2))
    picture, found = case.render(pipe, seed=4, steps=9), report(pipe)
    assert any(site.endswith(".guidance") for site in found.sites)
    accelerate(pipe, str(found.to_schedule().save_pretrained(tmp_path)))
    assert torch.equal(case.render(pipe, seed=4, steps=9), picture)
    assert report(pipe).compute_fraction == found.compute_fraction < 0.9


def test_two_images_at_once_are_no_two_passes() -> None:
    """A batch whose halves differ is left whole."""
    call: dict[str, Any] = {"embeds": by_embeds(), "passes": lambda step: ("cond",), "contexts": False}
    latents = torch.arange(16.0).reshape(2, 2, 4)
    call["embeds"]["cond"]["encoder_hidden_states"] = torch.full((2, 2, 4), 3.0)
    pipe = accelerate(toy_pipeline(), OnlyGuidance())
    assert torch.equal(pipe(**call, latents=latents), toy_pipeline()(**call, latents=latents))
    assert report(pipe).compute_fraction == 1


class TellsItsText(nn.Module):
    """Returns its text stream too, whose length is the pass's own."""

    def forward(self, x: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        return x + text.mean(), 2 * text


def test_passes_whose_outputs_differ_in_shape_are_computed_and_the_report_says_why() -> None:
    net = accelerate(TellsItsText().eval(), OnlyGuidance())
    x, texts = torch.ones(1, 2, 4), [torch.ones(1, length, 4) for length in (3, 5)]
    with torch.no_grad(), denoising_run(net, 3) as run:
        for i in range(3):
            run.begin_step(i)
            for text in texts:
                assert torch.equal(net(x, text)[1], 2 * text)
    assert report(net).compute_fraction == 1
    assert [tick for tick, *_ in report(net).reasons[OTHER_SHAPES]] == [0, 1, 2]


def test_a_forgotten_pass_leaves_no_difference_behind() -> None:
    """Unconditional prompts that come and go: no more is held for many of them than for few."""
    call: dict[str, Any] = {
        "embeds": by_embeds(**{f"uncond{i}": float(-5 - i) for i in range(16)}),
        "passes": lambda step: ("cond", f"uncond{(step + 2) // 4}"),
        "contexts": False,
    }
    pipe, held = accelerate(toy_pipeline(), OnlyGuidance()), []
    for steps in (20, 40):
        torch.testing.assert_close(
            pipe(**call, num_inference_steps=steps), toy_pipeline()(**call, num_inference_steps=steps)
        )
        assert report(pipe).compute_fraction < 1
        held.append(report(pipe).cache_bytes)
    assert held[0] == held[1]


@pytest.mark.parametrize("names", [("prompt_embeds", "negative_prompt_embeds"), ("prompt_embeds",)])
def test_after_another_prompt_the_difference_of_the_old_one_is_not_added(names: tuple[str, ...]) -> None:
    case = CASES["WanPipeline"]
    pipe = accelerate(case.build(), OnlyGuidance())

    def other(pipe: Any, step: int, time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        return {**tensors, **{name: tensors[name].flip(-1) * 3 for name in names if step == 1}}

    kept = ["latents", "prompt_embeds", "negative_prompt_embeds"]
    case.render(pipe, 0, 8, callback_on_step_end=other, callback_on_step_end_tensor_inputs=kept)
    told = report(pipe)
    s = told.sites.index("transformer.guidance")
    assert told.decisions[:, :, s].any(dim=1).nonzero().flatten().tolist() == [0, 2, 4]


class Curved(ToyDenoiser):
    """What it adds depends on the latent too."""

    def forward(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        return_dict: bool = False,
    ) -> tuple[Tensor]:
        shift = encoder_hidden_states.mean(dim=(1, 2))[:, None, None]
        return (hidden_states + shift * torch.sin(hidden_states),)


def test_two_images_of_one_seed_are_no_two_passes() -> None:
    """They begin alike, and differ from the second tick on."""
    prompts = torch.tensor([3.0, -5.0])[:, None, None].expand(2, 2, 4)
    call: dict[str, Any] = {
        "embeds": {"cond": {"encoder_hidden_states": prompts}},
        "passes": lambda step: ("cond",),
        "contexts": False,
        "latents": torch.arange(8.0).reshape(1, 2, 4).repeat(2, 1, 1),
    }
    pipe = accelerate(toy_pipeline(Curved()), OnlyGuidance())
    torch.testing.assert_close(pipe(**call), toy_pipeline(Curved())(**call))
    assert report(pipe).compute_fraction == 1


@pytest.mark.parametrize("guidance_scale", [1.0, 5.0])
def test_a_batch_whose_attention_counts_its_rows_stays_whole(guidance_scale: float) -> None:
    """Perturbed-attention guidance: two images, whose batch comes in two or three parts."""
    parts = ("vae", "text_encoder", "tokenizer", "unet", "scheduler")
    plain = CASES["StableDiffusionPipeline"].build()
    pipe = StableDiffusionPAGPipeline(
        **{name: plain.components[name] for name in parts},
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
        pag_applied_layers=["mid"],
    )
    pipe.set_progress_bar_config(disable=True)
    call = {**CASES["StableDiffusionPipeline"].call(0, 3), "guidance_scale": guidance_scale}
    call |= {
        "num_images_per_prompt": 2,
        "latents": torch.arange(256.0).reshape(1, 4, 8, 8).repeat(2, 1, 1, 1) / 256,
    }
    expected = pipe(**call)[0]
    accelerate(pipe, OnlyGuidance())
    assert torch.equal(torch.as_tensor(pipe(**call)[0]), torch.as_tensor(expected))
    assert report(pipe).compute_fraction == 1
    accelerate(pipe, "easycache", per_sample=True)
    with pytest.raises(ConfigError, match="leave it off"):
        pipe(**call)


def test_low_and_high_frequencies_are_weighted_apart() -> None:
    y = torch.arange(16.0)[:, None] * torch.ones(16)
    low, high = torch.cos(2 * torch.pi * y / 16), torch.cos(2 * torch.pi * 7 * y / 16)
    torch.testing.assert_close(
        weighted((low + high)[None, None], 2.0, 3.0)[0, 0], 2 * low + 3 * high, atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("conditional_first", [False, True])
def test_the_unconditional_half_is_the_one_that_is_rebuilt(
    conditional_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which half is which is a convention of the pipeline; the known exceptions are named by denoiser."""
    if conditional_first:
        monkeypatch.setattr("diffcache.host.rows.CONDITIONAL_FIRST", {"ToyDenoiser"})
    order = ("cond", "uncond") if conditional_first else ("uncond", "cond")
    pipe = accelerate(toy_pipeline(), OnlyGuidance())
    seen: list[float] = []
    forward = pipe.transformer.forward
    pipe.transformer.forward = lambda *a, **k: (
        seen.append(float(k["encoder_hidden_states"].mean())) or forward(*a, **k)
    )
    call: dict[str, Any] = {"embeds": by_embeds(), "batched": True, "passes": lambda step: order}
    assert torch.equal(pipe(**call), toy_pipeline()(**call))
    assert seen.count(MARKS["cond"]) == 8
