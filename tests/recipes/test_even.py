"""A speed-up is kept: never more compute than asked for."""

from __future__ import annotations

import pytest
from support.toys import by_embeds, toy_pipeline

from diffcache import accelerate, report
from diffcache.config import RunFacts
from diffcache.recipes.budgeted import allowed
from diffcache.recipes.even import EvenConfig
from diffcache.schedulers.guards import History
from diffcache.schedulers.steps import Step
from diffcache.schedulers.ticks import spread


@pytest.mark.parametrize("speedup", [1, 1.3, 1.5, 2, 2.5, 3, 4, 10, 100])
@pytest.mark.parametrize("ticks", [1, 2, 5, 7, 20, 28, 50, 100])
def test_a_speedup_allows_its_share_of_the_ticks(ticks: int, speedup: float) -> None:
    assert allowed(ticks, speedup) == max(int(ticks / speedup + 1e-9), 1)


def test_in_a_run_of_unknown_length_every_nth_tick_is_computed() -> None:
    scheduler = EvenConfig(speedup=3.5).scheduler(RunFacts("Net"))
    assert [t for t in range(9) if scheduler.decide(Step(t, None, "0"), None).computes] == [0, 4, 8]


def test_denoisers_that_share_a_run_spread_their_ticks_evenly() -> None:
    assert spread(50, 12, 3) == [0, 1, 2, 7, 12, 18, 23, 28, 33, 39, 44, 49]
    scheduler = EvenConfig(speedup=50 / 12).scheduler(RunFacts("Net", experts=2, num_ticks=50))
    due = [tick for tick in range(3, 50) if scheduler.decide(Step(tick, 50, "0"), None).computes]
    assert due == [tick for tick in spread(50, 11, 1) if tick >= 3]


def test_two_denoisers_compute_everything_at_a_speed_up_of_one() -> None:
    scheduler = EvenConfig(speedup=1).scheduler(RunFacts("Net", experts=2, num_ticks=50))
    assert all(scheduler.decide(Step(tick, 50, "0"), None).computes for tick in range(50))


@pytest.mark.parametrize("speedup", [1, 1.5, 2, 3, 4, 7])
@pytest.mark.parametrize("options", [{}, {"tail_steps": 0}, {"tail_steps": 3}, {"warmup_steps": 3}], ids=str)
def test_as_many_ticks_are_computed_as_the_speed_up_allows(speedup: float, options: dict[str, int]) -> None:
    config = EvenConfig(speedup=speedup, **options)
    facts = RunFacts("Net", num_ticks=50)
    scheduler, guards = config.scheduler(facts), config.guards(facts)
    computed = [
        tick
        for tick in range(50)
        if guards.forces_compute(Step(tick, 50, "0"), History(0, None)) is not None
        or scheduler.decide(Step(tick, 50, "0"), None).computes
    ]
    assert len(computed) == allowed(50, speedup)


@pytest.mark.parametrize(
    ("ticks", "remarks"), [(8, True), (14, True), (16, False), (50, False), (None, False)]
)
def test_a_speed_up_that_leaves_few_ticks_is_remarked_on(ticks: int | None, remarks: bool) -> None:
    remark = EvenConfig(speedup=2).remark(RunFacts("Net", num_ticks=ticks))
    assert (remark is not None) is remarks
    assert ticks is None or remark is None or f"num_inference_steps={ticks // 2}" in remark
    assert EvenConfig(speedup=1).remark(RunFacts("Net", num_ticks=ticks)) is None


@pytest.mark.parametrize(("ticks", "asked", "steps"), [(15, 8, 4), (10, 20, 10), (10, 10, 5), (10, None, 5)])
def test_the_proposed_steps_make_as_many_ticks(ticks: int, asked: int | None, steps: int) -> None:
    remark = EvenConfig(speedup=2).remark(RunFacts("Net", num_ticks=ticks, asked=asked))
    assert f"num_inference_steps={steps})" in str(remark)


def test_the_report_says_so() -> None:
    pipe = accelerate(toy_pipeline(), speedup=2)
    pipe(by_embeds(), num_inference_steps=8)
    assert any("a plain run of 4 ticks may be as good" in note for note in report(pipe).notes)
