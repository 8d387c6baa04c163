"""The sd testbed as a model that predicts the noise."""

from __future__ import annotations

import torch

from diffcache.evals.harness.rendering import render
from diffcache.evals.testbeds import zoo
from diffcache.evals.testbeds.repredicting import sd_predicting


def test_its_pictures_are_the_testbeds() -> None:
    call = zoo.sample_call("sd", 0, 6, 1)
    twin = sd_predicting("epsilon")
    assert twin.scheduler.config.prediction_type == "epsilon"
    torch.testing.assert_close(
        render(twin, call).pictures, render(zoo.load("sd"), call).pictures, atol=1e-3, rtol=0
    )
