"""Every pipeline of the zoo renders, with its own noise scheduler and with others, and the same from the same seed."""

from __future__ import annotations

import pytest
import torch
from zoo.noise_schedulers import SHORT_NAMES, with_noise_scheduler
from zoo.pipelines import CASES

FLOW = ["FlowMatchEuler", "FlowMatchHeun", "DPM++", "UniPC"]
NOISE = [name for name in SHORT_NAMES if "FlowMatch" not in name]
SWAPS = [("WanPipeline", name) for name in FLOW] + [("StableDiffusionPipeline", name) for name in NOISE]


def test_the_zoo_is_large():
    assert len({name.split("-")[0] for name in CASES}) >= 40


@pytest.mark.parametrize("name", CASES)
def test_renders_finite_and_repeatable(name):
    case = CASES[name]
    pipe = case.build()
    called = set()
    for denoiser in case.denoisers:
        getattr(pipe, denoiser).register_forward_pre_hook(lambda *_, denoiser=denoiser: called.add(denoiser))
    image = case.render(pipe, seed=1, steps=4)
    assert called == set(case.denoisers)
    assert image.isfinite().all()
    assert image.float().std() > 0
    assert torch.equal(image, case.render(pipe, seed=1, steps=4))
    assert not torch.equal(image, case.render(pipe, seed=2, steps=4))


@pytest.mark.parametrize(("name", "noise_scheduler"), SWAPS)
def test_other_noise_schedulers(name, noise_scheduler):
    case = CASES[name]
    pipe = with_noise_scheduler(case.build(), noise_scheduler)
    assert type(pipe.scheduler).__name__ == SHORT_NAMES[noise_scheduler]
    assert case.render(pipe, steps=5).isfinite().all()


def test_unsuitable_noise_scheduler_is_refused():
    with pytest.raises(ValueError, match="does not suit"):
        with_noise_scheduler(CASES["WanPipeline"].build(), "DDIM")
