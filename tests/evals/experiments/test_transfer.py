"""A schedule is compared with as many even ticks, at any number of steps."""

from dataclasses import replace

import pytest

from diffcache.evals.experiments.transfer import beside_even
from diffcache.evals.harness.comparison import Comparison
from diffcache.evals.testbeds import zoo
from diffcache.profiling.recording.frozen import frozen
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.schedule import ALL


@pytest.mark.parametrize("steps", [5, 8])
def test_the_control_computes_as_many_ticks(steps: int) -> None:
    pipe, call = zoo.load("dit"), zoo.sample_call("dit", 0, 5, 1)
    schedule = frozen(pipe, call, UniformConfig(interval=2))  # ticks 0, 2 and 4, which are even
    comparison = Comparison(pipe, {**call, "num_inference_steps": steps}, referenced=False)
    own, control = beside_even(comparison, schedule)
    assert control.ticks == own.ticks < own.total == steps
    assert (own.psnr_full == control.psnr_full) == (steps == 5)


def test_a_schedule_whose_sites_differ_has_no_even_ticks_to_compare_with() -> None:
    pipe, call = zoo.load("dit"), zoo.sample_call("dit", 0, 3, 1)
    schedule = frozen(pipe, call, UniformConfig(interval=2, site="attention"))
    first, *others = schedule.table
    mixed = replace(schedule, table={first: {ALL: "###"}, **{site: schedule.table[site] for site in others}})
    with pytest.raises(ConfigError, match="compute at ticks of their own"):
        beside_even(Comparison(pipe, call, referenced=False), mixed)
