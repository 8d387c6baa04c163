"""Full runs are the same pictures every time."""

from __future__ import annotations

from statistics import fmean

import pytest
import torch
from support.searches.flux_calls import FLUX, flux_calls

from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.recording.pictures import relative_errors
from diffcache.recipes.even import EvenConfig
from diffcache.schedulers.errors import ConfigError

STEPS = 8


def test_calls_that_give_other_pictures_each_time_are_refused() -> None:
    pipe = FLUX.build()
    free = [
        {name: value for name, value in call.items() if name != "generator"} for call in flux_calls(STEPS)
    ]
    with pytest.raises(ConfigError, match="other pictures each time: give it a generator"):
        FullRuns(pipe, free)
    drawing = FullRuns(lambda **call: (torch.rand(1), pipe(**call))[1], flux_calls(STEPS))
    assert torch.equal(drawing.pictures, FullRuns(pipe, flux_calls(STEPS)).pictures)


def test_the_median_of_two_samples_is_between_them() -> None:
    config = EvenConfig(speedup=2)
    runs = FullRuns(FLUX.build(), flux_calls(STEPS, 2))
    errors = relative_errors(runs.cached(config), runs.pictures).tolist()
    schedule, _ = runs.decided(config)
    assert schedule.expected_error == pytest.approx(fmean(errors))
    assert runs.psnr(config) == pytest.approx(fmean(runs.psnrs(config).tolist()))
