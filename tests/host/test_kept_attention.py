"""Self-attention guidance reads attention maps that the denoiser keeps: nothing is reused there, and the report says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import StableDiffusionSAGPipeline
from diffusers.models.attention_processor import AttnProcessor2_0
from zoo.image_pipelines import PROMPTS, SMALL
from zoo.pipelines import CASES
from zoo.unet_pipelines import sd

from diffcache import accelerate, report
from diffcache.engine.obstacles import KEPT_ATTENTION

GUIDED = {**PROMPTS, **SMALL, "num_inference_steps": 6, "guidance_scale": 3.0}
UNGUIDED = {**GUIDED, "guidance_scale": 1.0}


@pytest.mark.parametrize("asked", [GUIDED, UNGUIDED], ids=["guided", "unguided"])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("trajectory", {"speedup": 2}),
        ("uniform", {"interval": 2, "warmup_steps": 0}),
        ("fbcache", {"threshold": 9}),
    ],
)
def test_a_pipeline_that_reads_attention_maps_is_computed_as_it_was(
    method: str, options: dict[str, float], asked: dict[str, Any]
) -> None:
    pipe = sd(StableDiffusionSAGPipeline)

    def picture() -> torch.Tensor:
        return pipe(**asked, generator=torch.Generator().manual_seed(0)).images

    plain = picture()
    accelerate(pipe, method, **options)
    assert torch.equal(picture(), plain)
    assert KEPT_ATTENTION in report(pipe).reasons
    assert KEPT_ATTENTION in report(pipe).summary()
    assert not report(pipe).expected_error


def test_processors_that_keep_nothing_do_not_matter() -> None:
    pipe = accelerate(CASES["StableDiffusionPipeline"].build(), speedup=2)
    CASES["StableDiffusionPipeline"].render(pipe, steps=6)
    assert KEPT_ATTENTION not in report(pipe).reasons


class Controller:
    def __init__(self) -> None:
        self.calls = 0
        self.store: dict[str, list[torch.Tensor]] = {"maps": []}


class Counting(AttnProcessor2_0):  # type: ignore[misc] # diffusers has no types
    """Prompt-to-prompt's way: all processors share a controller."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self.controller = controller

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.controller.calls += 1
        return super().__call__(*args, **kwargs)


class Storing(Counting):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        output = super(Counting, self).__call__(*args, **kwargs)
        self.controller.store["maps"].append(output)
        return output


def test_a_pipeline_that_a_processor_knows_is_not_what_it_keeps() -> None:
    case, controller = CASES["StableDiffusionPipeline"], Controller()
    pipe = case.build()
    controller.pipe = pipe  # type: ignore[attr-defined]
    pipe.unet.set_attn_processor(Counting(controller))
    accelerate(pipe, speedup=2)
    pipe.newest = None

    def keep(pipe: Any, step: int, time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        pipe.newest = tensors["latents"]
        return tensors

    case.render(pipe, steps=6, callback_on_step_end=keep)
    assert KEPT_ATTENTION not in report(pipe).reasons


@pytest.mark.parametrize(("kind", "counts"), [(Storing, True), (Counting, False)])
def test_what_a_controller_keeps_counts_and_numbers_do_not(kind: type[Counting], counts: bool) -> None:
    case, controller = CASES["StableDiffusionPipeline"], Controller()
    pipe = case.build()
    pipe.unet.set_attn_processor(kind(controller))
    accelerate(pipe, speedup=2)
    case.render(pipe, steps=6)
    assert (KEPT_ATTENTION in report(pipe).reasons) is counts
    assert (report(pipe).computed_ticks == [*range(6)]) is counts
