"""The sensitivity of a result is measured by holding the output of one tick alone."""

from diffcache.evals.experiments.sensitivity import AllButOne, Felt, curves
from diffcache.evals.harness.rendering import render
from diffcache.evals.testbeds import zoo


def row(steps: int, guidance: float, tick: int, sensitivity: float) -> Felt:
    return {
        "steps": steps,
        "guidance": guidance,
        "tick": tick,
        "angle": 1.5 - tick / 10,
        "sensitivity": sensitivity,
    }


def test_rows_are_parted_by_steps_and_guidance() -> None:
    rows = [row(50, 3.0, 1, 4.0), row(20, 3.0, 1, 5.0), row(50, 3.0, 2, 2.0), row(20, 1.0, 1, 1.0)]
    found = list(curves(rows))
    assert [curve.guidance for curve in found] == [3.0, 3.0, 1.0]
    assert [curve.factors for curve in found] == [[4.0, 2.0], [5.0], [1.0]]


def test_one_tick_is_held_and_all_others_are_computed() -> None:
    run = render(zoo.load("flux"), zoo.sample_call("flux", 0, 6, 1), AllButOne(held=3))
    assert run.run_report.computed_ticks == [0, 1, 2, 4, 5]
