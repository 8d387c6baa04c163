"""Why nothing was reused: the report says what is true of the run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.harness import Abort, failing
from support.toys import ToyDenoiser, by_embeds, toy_pipeline
from zoo.pipelines import CASES

from diffcache import accelerate, denoising_run, report
from diffcache.evals.testbeds import zoo
from diffcache.reports.nothing_reused import COVERED, OWN_THRESHOLD
from diffcache.reports.run_report import BROKEN_OFF


@pytest.mark.parametrize("options", [{"warmup_steps": 100}, {"tail_steps": 100}], ids=str)
def test_warm_up_and_tail_cover_the_run(options: dict[str, Any]) -> None:
    pipe = accelerate(toy_pipeline(), "uniform", **options)
    pipe(by_embeds(), num_inference_steps=50)
    assert report(pipe).notes == [f"nothing was reused: {COVERED}"]


def test_what_lies_outside_the_cached_sites_is_no_reason() -> None:
    case = CASES["FluxPipeline"]
    pipe = accelerate(case.build(), "fora", warmup_steps=100)
    case.render(pipe, 0, 10)
    assert report(pipe).notes == [f"nothing was reused: {COVERED}"]


@pytest.mark.parametrize(
    ("method", "ended"), [({"speedup": 2.0}, 1), ({"config": "uniform", "warmup_steps": 12}, 10)], ids=str
)
def test_a_run_that_was_broken_off_before_anything_could_be_reused(
    method: dict[str, Any], ended: int
) -> None:
    def stop(pipe: Any, step: int, *_: Any) -> dict[str, Any]:
        if step == ended - 1:
            raise KeyboardInterrupt
        return {}

    case = CASES["FluxPipeline"]
    pipe = accelerate(case.build(), **method)
    with pytest.raises(KeyboardInterrupt):
        case.render(pipe, 0, 28, callback_on_step_end=stop)
    assert report(pipe).notes == [f"nothing was reused: the run ended at tick {ended} of 28"]


def test_a_run_that_was_broken_off_in_its_first_call() -> None:
    case = CASES["FluxPipeline"]
    pipe = accelerate(case.build(), speedup=2)
    with failing(pipe.transformer.transformer_blocks[0], 1), pytest.raises(Abort):
        case.render(pipe, 0, 8)
    assert report(pipe).notes == [BROKEN_OFF]


def test_a_run_that_was_broken_off_after_reuse_says_where() -> None:
    net = accelerate(ToyDenoiser().eval(), "uniform")
    with torch.no_grad(), denoising_run(net, 8) as run:
        for i in range(5):
            run.begin_step(i)
            net(torch.ones(1, 4, 4), torch.ones(1))
    assert report(net).computed_ticks == [0, 2, 4]
    assert "the run ended at tick 5 of 8" in report(net).notes


def test_every_change_was_above_the_threshold_that_the_method_has_by_itself() -> None:
    pipe = accelerate(zoo.load("flux"), "easycache")
    pipe(**zoo.sample_call("flux", 0, 12, n=1))
    (note,) = report(pipe).notes
    assert note.startswith(f"nothing was reused: {OWN_THRESHOLD} (")


def test_a_guard_is_counted_in_ticks_and_not_in_the_sites_that_it_made_compute() -> None:
    case = CASES["FluxPipeline"]
    pipe = accelerate(case.build(), "fora", warmup_steps=2, tail_steps=1)
    case.render(pipe, 0, 6)
    summary = report(pipe).summary()
    assert "warm-up (2 ticks)\n" in summary
    assert "tail (1 tick)\n" in summary + "\n"


def test_a_run_without_reuse_does_not_say_what_its_reuse_would_cost() -> None:
    case = CASES["FluxPipeline"]
    pipe = accelerate(case.build(), speedup=2)
    case.render(pipe, 0, 4)
    assert any("may be as good, compare it" in note for note in report(pipe).notes)
    pipe.transformer.train()
    case.render(pipe, 0, 4)
    assert report(pipe).notes == ["nothing was reused: training mode: call .eval() on the denoiser (4 ticks)"]
