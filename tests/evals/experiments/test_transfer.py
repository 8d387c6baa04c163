"""A schedule is compared with as many even ticks, at any number of steps."""

import pytest

from diffcache.evals.experiments.transfer import beside_even
from diffcache.evals.harness.comparison import Comparison
from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.frozen import frozen
from diffcache.recipes.uniform import UniformConfig


@pytest.mark.parametrize("steps", [5, 8])
def test_the_control_computes_as_many_ticks(steps: int) -> None:
    pipe, call = zoo.load("dit"), zoo.sample_call("dit", 0, 5, 1)
    schedule = frozen(pipe, call, UniformConfig(interval=2))  # ticks 0, 2 and 4, which are even
    comparison = Comparison(pipe, {**call, "num_inference_steps": steps}, referenced=False)
    own, control = beside_even(comparison, schedule)
    assert control.ticks == own.ticks < own.total == steps
    assert (own.psnr_full == control.psnr_full) == (steps == 5)
