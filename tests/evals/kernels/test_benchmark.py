"""The kernel benchmark: figures from times, and none of a kernel that is wrong."""

from dataclasses import astuple
from typing import Any

import pytest
import torch

from diffcache.evals.kernels import benchmark as kernel_benchmark
from diffcache.evals.kernels import cases as kernel_cases
from diffcache.evals.kernels.benchmark import Measurement, Refusal, measure
from diffcache.evals.kernels.cases import Case, cases
from diffcache.kernels.relative_l1 import l1_means
from diffcache.kernels.rope_scatter import rope_scatter

SMALL = dict.fromkeys(kernel_cases.FEATURES, (1, 8, 6))
TEXT = kernel_cases.TextSizes(heads=2, head=4, slots=40, vocabulary=50, answer=9, active=8, tracked=4)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled: the cases are timed by nobody."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


def no_time(call: Any) -> float:
    call()
    return 1.0


def test_every_case_runs(small: None) -> None:
    measured = [measure(case, no_time) for case in cases(SMALL, TEXT)]
    assert all(isinstance(outcome, Measurement) for outcome in measured), measured
    assert len({(outcome.model, outcome.kernel) for outcome in measured}) == len(measured)


def test_figures_follow_from_times(small: None) -> None:
    case = Case("toy", l1_means, "", lambda: (torch.randn(10), torch.randn(10)))
    times = iter([0.5, 2.0, 0.75, 0.25])  # kernel, eager, compiled, copy
    outcome = measure(case, lambda call: next(times))
    assert isinstance(outcome, Measurement)
    *figures, host, of_copy, over_eager, over_compiled, meets_targets = astuple(outcome)
    assert figures == ["toy", "l1_means", 88, 176.0]
    assert host > 0
    assert (of_copy, over_eager, over_compiled, meets_targets) == (0.5, 4.0, 1.5, False)


def test_a_wrong_result_gets_no_figure(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(cases())
    monkeypatch.setattr(case.op, "_run", lambda *args: 1.01 * case.op.reference(*args))
    outcome = measure(case, pytest.fail)
    assert isinstance(outcome, Refusal)
    assert "not close" in outcome.difference


def test_a_wrong_write_gets_no_figure(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in cases(SMALL, TEXT) if case.op is rope_scatter)

    def forgets_the_cache(*args: Any) -> Any:
        return rope_scatter.reference(*args[:-2], args[-2].clone(), args[-1])

    monkeypatch.setattr(case.op, "_run", forgets_the_cache)
    assert isinstance(measure(case, pytest.fail), Refusal)


def test_outcomes_are_written(small: None) -> None:
    assert kernel_benchmark.row(Refusal("m", "k", "d")) == {"model": "m", "kernel": "k", "difference": "d"}
