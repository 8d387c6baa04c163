"""tune compares what it found with the plain pipeline in fewer steps, and advises these where they are better."""

from typing import Any

import pytest
import torch
from support.searches.flux_calls import FLUX, flux_calls

from diffcache import tune
from diffcache.profiling.recording.full_runs import FullRuns
from diffcache.profiling.recording.pictures import pictures_of, psnr, rewound
from diffcache.profiling.tuning.plain_steps import EVEN, FEWER, better_without, steps_for


class Pipe:
    def __call__(self, prompt: str = "", num_inference_steps: int = 28) -> None: ...


class Unstepped:
    def __call__(self, **call: Any) -> None: ...


@pytest.mark.parametrize(
    ("call", "compute", "steps"),
    [({}, 0.5, 14), ({"num_inference_steps": 9}, 1 / 3, 3), ({}, 0.03, None), ({}, 1.0, None)],
)
def test_steps_are_as_many_as_the_work_allows(
    call: dict[str, Any], compute: float, steps: int | None
) -> None:
    assert steps_for(Pipe(), call, compute) == steps


def test_where_steps_cannot_be_chosen_nothing_is_compared() -> None:
    assert steps_for(Unstepped(), {"num_inference_steps": 8}, 0.5) is None


def test_what_is_better_than_the_schedule_is_advised() -> None:
    def advice(plain: float | None, even: float | None) -> str | None:
        verify: dict[str, Any] = {"median": 30.0, "mean": 40.0}
        if plain is not None:
            verify[FEWER] = {"num_inference_steps": 5, "median": plain, "mean": 20.0}
        if even is not None:
            verify[EVEN] = {"median": even, "mean": 20.0}
        return better_without({"verify": verify})

    assert better_without({}) is advice(None, None) is advice(29.9, 30.0) is None
    steps, ticks = "num_inference_steps=5 without a cache is better", 'the method "even" is better'
    assert str(advice(31.0, None)).startswith(steps)
    assert str(advice(31.0, 30.5)).startswith(steps)
    assert str(advice(None, 31.0)).startswith(ticks)
    assert str(advice(29.0, 31.0)).startswith(ticks)
    assert "a median of 31.00, and 30.00 with this schedule" in str(advice(29.0, 31.0))


def test_fewer_steps_are_measured_against_the_full_runs_of_the_same_seeds() -> None:
    pipe, calls = FLUX.build(), flux_calls(6)
    runs = FullRuns(pipe, calls)
    found = runs.with_steps(3)
    shorter = torch.cat([pictures_of(pipe(**rewound({**call, "num_inference_steps": 3}))) for call in calls])
    assert torch.equal(found, psnr(shorter, runs.pictures).double())


def test_tune_warns_with_the_advice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("diffcache.profiling.tuning.tune.better_without", lambda *_: "take fewer")
    tune(FLUX.build(), flux_calls(6, 3), speedup=2)
    assert "take fewer." in caplog.text
