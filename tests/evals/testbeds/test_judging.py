"""The testbeds to judge on: they draw what their pipelines draw, and differ as they should."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diffcache.evals.metrics.distribution import kid
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import fashion_mnist, splits, zoo
from diffcache.evals.testbeds.emoji import GROUNDS
from diffcache.evals.testbeds.fashion_mnist import FashionClassifier

SHIPPED = {
    "pixart": ("DPMSolverMultistepScheduler", "epsilon", 2),
    "sd3": ("FlowMatchEulerDiscreteScheduler", None, 1),
    "sdxl": ("EulerDiscreteScheduler", "epsilon", 1),
    "fashion": ("DDIMScheduler", "epsilon", 2),
    "turbo": ("FlowMatchEulerDiscreteScheduler", None, 1),
    "kontext": ("FlowMatchEulerDiscreteScheduler", None, 1),
    "kontext_turbo": ("FlowMatchEulerDiscreteScheduler", None, 1),
    "sana": ("DPMSolverMultistepScheduler", "flow_prediction", 1),
    "ddpm": ("DDIMScheduler", "sample", 1),
    "ddim": ("DDIMScheduler", "epsilon", 1),
    "lumina2": ("FlowMatchEulerDiscreteScheduler", None, 1),
}
"""Noise scheduler, what it takes the output for, and how often the latents' channels are in the output."""


def denoiser(pipe: Any) -> Any:
    return getattr(pipe, "transformer", None) or pipe.unet


@pytest.mark.parametrize("name", splits.JUDGING)
def test_predicts_and_is_sampled_as_the_pipeline_ships(name: str) -> None:
    pipe = zoo.load(name)
    config = denoiser(pipe).config
    found = (type(pipe.scheduler).__name__, pipe.scheduler.config.get("prediction_type"))
    assert (*found, (config.out_channels or config.in_channels) // config.in_channels) == SHIPPED[name]


@pytest.mark.parametrize("name", [name for name in zoo.OF_EMOJI if name in splits.JUDGING])
def test_the_ground_is_the_one_that_was_asked_for(name: str) -> None:
    asked = [f"red heart on {ground}" for ground in GROUNDS]
    pictures = zoo.load(name)(**zoo.call_for(name, asked, range(len(asked)), min(12, zoo.STEPS[name])))[0]
    corners = pictures[:, :, [1, 1, -2, -2], [1, -2, 1, -2]].median(dim=2).values
    distance = torch.cdist(corners, torch.tensor(list(GROUNDS.values())))
    assert (distance.argmin(1) == torch.arange(len(asked))).float().mean() >= 0.8


@pytest.mark.slow
def test_the_classifier_sees_the_garments_that_were_asked_for() -> None:
    asked = [i % zoo.CLASSES["fashion"] for i in range(40)]
    pictures = zoo.load("fashion")(**zoo.call_for("fashion", asked, range(len(asked)), 12))[0]
    right = FashionClassifier.load().predict(pictures) == torch.tensor(asked)
    assert right.float().mean() >= 0.7


@pytest.mark.slow
def test_testbeds_of_fashion_are_near_its_test_pictures() -> None:
    call = zoo.sample_call("ddpm", 0, 12, n=64)
    reference, classifier = fashion_mnist.reference_features(), FashionClassifier.load()
    drawn = classifier(zoo.load("ddpm")(**call)[0])
    noise = classifier(torch.rand(64, 3, 32, 32))
    assert kid(drawn, reference) < 0.2 * kid(noise, reference)


def test_an_edit_changes_what_it_names_and_keeps_the_rest() -> None:
    asked = [prompt for prompt in zoo.prompts("kontext", 99, "heldout") if " with " in prompt][:12]
    call = zoo.call_for("kontext", asked, range(len(asked)), 12)
    change = (zoo.load("kontext")(**call)[0] - call["image"]).abs().mean(1)
    inside = change[:, 34:62, 34:62].mean((1, 2))
    outside = change[:, :32].mean((1, 2))
    assert (inside > 3 * outside).float().mean() >= 0.8


@pytest.mark.slow
def test_four_steps_of_turbo_are_nearer_to_the_teacher_than_four_of_its_own() -> None:
    teacher, turbo = zoo.load("sd3"), zoo.load("turbo")
    full = teacher(**zoo.sample_call("sd3", 5000, zoo.STEPS["sd3"], n=8))[0]
    own = teacher(**zoo.sample_call("sd3", 5000, 4, n=8))[0]
    distilled = turbo(**zoo.sample_call("turbo", 5000, 4, n=8))[0]
    assert psnr(distilled, full).mean() > psnr(own, full).mean() + 5
