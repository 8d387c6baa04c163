"""`speedup=`: an aim instead of a setting."""

import pytest
import torch
from support.harness import reference
from zoo.pipelines import CASES

from diffcache import EasyCacheConfig, accelerate, report
from diffcache.schedulers.errors import ConfigError

CASE = CASES["FluxPipeline"]


@pytest.mark.parametrize("speedup", [1.3, 1.5, 2, 2.5, 3, 4])
def test_never_more_compute_than_asked_for(speedup: float) -> None:
    pipe = accelerate(CASE.build(), speedup=speedup)
    CASE.render(pipe, 0, 50)
    assert len(report(pipe).computed_ticks) == int(50 / speedup + 1e-9)
    assert report(pipe).speedup >= speedup


@pytest.mark.parametrize("name", ["FluxPipeline", "WanPipeline-two-experts"])
@pytest.mark.parametrize(
    ("steps", "speedup"), [(4, 2), (4, 3), (4, 4), (6, 2), (6, 3), (9, 2), (9, 3), (13, 2), (13, 3), (13, 13)]
)
def test_nor_in_few_steps_or_with_two_denoisers(name: str, steps: int, speedup: float) -> None:
    pipe = accelerate(CASES[name].build(), speedup=speedup)
    CASES[name].render(pipe, 0, steps)
    first_of_each = len(CASES[name].denoisers)
    assert len(report(pipe).computed_ticks) <= max(int(steps / speedup + 1e-9), first_of_each)


def test_speedup_1_is_the_plain_pipeline() -> None:
    pipe = accelerate(CASE.build(), speedup=1)
    assert torch.equal(CASE.render(pipe, 0, 6), reference("FluxPipeline"))


def test_an_aim_and_a_setting_do_not_go_together() -> None:
    pipe = CASE.build()
    for options, named in (
        ({"config": "easycache", "speedup": 2}, "easycache takes no speedup= and no quality="),
        ({"config": EasyCacheConfig(), "speedup": 2}, "the EasyCacheConfig takes no speedup="),
        ({"speedup": 2, "quality": 30}, "quality= goes alone"),
    ):
        with pytest.raises(ConfigError, match=named) as refused:
            accelerate(pipe, **options)
        assert "speedup= goes alone or with the methods trajectory and even" in str(refused.value)
    with pytest.raises(ConfigError, match=r"diffcache\.tune"):
        accelerate(pipe, quality=30)
    with pytest.raises(ConfigError, match="speedup must be"):
        accelerate(pipe, speedup=0.5)


def test_a_quality_that_no_reuse_keeps_leaves_what_was_attached() -> None:
    pipe = accelerate(CASE.build(), "easycache")
    picture = CASE.render(pipe, 0, 4)
    ticks = report(pipe).computed_ticks
    with pytest.raises(ConfigError, match="no reuse keeps 101 on"):
        accelerate(pipe, quality=101, prompts=[CASE.call(seed, 4) for seed in range(3)])
    assert report(pipe).method == "easycache"
    assert report(pipe).computed_ticks == ticks
    assert torch.equal(CASE.render(pipe, 0, 4), picture)


def test_the_report_says_what_was_lost() -> None:
    pipe = accelerate(CASE.build(), speedup=2)
    CASE.render(pipe, 0, 20)
    drift = report(pipe).drift
    assert drift is not None
    assert 0 < drift < 1
    assert "estimated error" in report(pipe).summary()
    accelerate(pipe, speedup=1)
    CASE.render(pipe, 0, 6)
    assert not report(pipe).drift
