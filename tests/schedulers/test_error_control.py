"""Error control: it expects the errors of interpolation theory, and computes where the output bends."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from diffcache import accelerate, denoising_run, report
from diffcache.evals.harness.rendering import render
from diffcache.evals.metrics.fidelity import psnr
from diffcache.evals.testbeds import zoo
from diffcache.recipes.curvature import CurvatureConfig
from diffcache.recipes.uniform import UniformConfig
from diffcache.schedulers.error_control import OFF, ErrorControl
from diffcache.schedulers.moments import Moment
from diffcache.schedulers.steps import Decision, Step

TICKS = 40


def at(tick: int, sigma: float | None = None) -> Moment:
    return Moment(tick, sigma)


def test_expected_errors_equal_a_hand_computed_sequence() -> None:
    control = ErrorControl(threshold=0.6)
    # At 0.6 the line through 0.8 and 0.9 was off by 0.03, holding by 0.1: 0.2 * 0.3 and 0.2 away.
    control.compared([at(2, 0.8), at(1, 0.9)], at(4, 0.6), torch.tensor([0.03, 0.1]))
    control.computed([], [])
    signal = [0.03, 0.1]
    # The line through 0.6 and 0.8: 0.03 * (0.1 * 0.3) / 0.06 = 0.015; then 0.03 * (0.2 * 0.4) / 0.06 = 0.04, ...
    for tick, expected in ((5, 0.015), (6, 0.055), (7, 0.13)):
        assert control.decide(Step(tick, 20, "0", 1 - tick / 10), signal) is Decision.PREDICT
        assert control.error == pytest.approx(expected)


def test_expected_errors_of_a_parabola_equal_a_hand_computed_sequence() -> None:
    control = ErrorControl(threshold=1.0, order=2, axis="tick")
    assert control.compares == (Decision.PREDICT, Decision.LINE, Decision.HOLD)
    control.compared([at(4), at(2), at(0)], at(6), torch.tensor([0.48, 0.04, 0.2]))
    # The remainders then were 2 * 4 * 6, 2 * 4 and 2; a tick on they are 1 * 3 * 5, 1 * 3 and 1, then 2 * 4 * 6, ...
    signal = [0.48, 0.04, 0.2]
    assert control.decide(Step(7, 20, "0"), signal) is Decision.LINE
    assert control.error == pytest.approx(0.015)
    signal = [0.0048, 0.04, 0.2]
    assert control.decide(Step(8, 20, "0"), signal) is Decision.PREDICT
    assert control.error == pytest.approx(0.015 + 0.0048)


def test_a_parabola_is_not_used_before_its_error_is_known() -> None:
    control = ErrorControl(threshold=1.0, order=2)
    control.compared([at(1), at(0)], at(2), torch.tensor([0.0, 0.1, 0.2]))
    assert control.decide(Step(3, 9, "0"), [0.0, 0.1, 0.2]) is Decision.LINE


def test_it_holds_where_holding_is_expected_to_be_better() -> None:
    control = ErrorControl(threshold=1.0)
    control.compared([at(1), at(0)], at(2), torch.tensor([0.3, 0.1]))
    assert control.decide(Step(3, 9, "0"), [0.3, 0.1]) is Decision.HOLD
    assert control.error == pytest.approx(0.1)


def test_it_computes_without_history_and_at_the_threshold_and_then_starts_at_zero() -> None:
    control = ErrorControl(threshold=0.25)
    assert control.decide(Step(0, 9, "0"), None) is Decision.COMPUTE
    control.compared([at(1), at(0)], at(2), torch.tensor([0.1, 0.1]))
    decisions = [control.decide(Step(tick, 9, "0"), [0.1, 0.1]).computes for tick in (3, 4)]
    assert decisions == [False, True]
    control.computed([], [])
    assert control.error == 0


def test_an_error_of_several_thresholds_is_followed_by_computing_and_noted() -> None:
    control = ErrorControl(threshold=0.1)
    control.compared([at(5), at(0)], at(10), torch.tensor([0.5, 0.4]))
    assert control.decide(Step(11, 20, "0"), [0.29, 0.29]) is not Decision.COMPUTE
    assert control.reason is None
    control.computed([], [])
    control.compared([at(5), at(0)], at(10), torch.tensor([0.5, 0.4]))
    assert control.decide(Step(11, 20, "0"), [0.5, 0.4]) is Decision.COMPUTE
    assert control.error < 0.1
    assert control.reason == OFF


def test_one_stored_feature_can_only_be_held() -> None:
    control = ErrorControl(threshold=1.0)
    control.compared([at(0)], at(1), torch.tensor([0.0, 0.1]))
    assert control.decide(Step(2, 9, "0"), [0.0, 0.1]) is Decision.HOLD


def test_a_tick_at_the_same_noise_level_adds_no_error() -> None:
    control = ErrorControl(threshold=1.0)
    control.compared([at(1, 0.8), at(0, 0.9)], at(2, 0.7), torch.tensor([0.1, 0.1]))
    control.decide(Step(3, 9, "0", 0.7, repeats_sigma=True), [0.1, 0.1])
    assert control.error == 0


def test_with_repeated_noise_levels_distances_are_ticks() -> None:
    """Second evaluations of Heun and PNDM have the noise level of the next tick."""
    control = ErrorControl(threshold=1.0)
    control.compared([at(2, 0.8), at(1, 0.8)], at(3, 0.7), torch.tensor([0.3, 0.1]))
    control.decide(Step(4, 9, "0", 0.7), [0.3, 0.1])
    assert control.error == pytest.approx(0.1)  # of holding, one tick on
    control.compared([at(3, 0.7), at(2, 0.8)], at(4, 0.7), torch.tensor([0.2, 0.2]))
    control.computed([], [])
    control.decide(Step(5, 9, "0", 0.6), [0.2, 0.2])
    assert control.error == pytest.approx(0.2)


class Bent(nn.Module):
    """An output that depends on time alone, by a given function."""

    def __init__(self, function: Callable[[float], float]) -> None:
        super().__init__()
        self.function = function

    def forward(self, hidden_states: Tensor, timestep: float) -> Tensor:
        return torch.full_like(hidden_states, self.function(timestep))


def run(net: Bent) -> list[Tensor]:
    sigmas = [1 - tick / TICKS for tick in range(TICKS)]
    outputs = []
    with torch.no_grad(), denoising_run(net, num_steps=TICKS, sigmas=[*sigmas, 0.0]) as loop:
        for tick, sigma in enumerate(sigmas):
            loop.begin_step(tick)
            outputs.append(net(torch.zeros(1, 4, 8, 8) + sigma, sigma))
    return outputs


def timeline(function: Callable[[float], float], threshold: float, order: int = 2) -> str:
    net = accelerate(Bent(function).eval(), "curvature", threshold=threshold, order=order, axis="sigma")
    run(net)
    return "".join(call.mark for call in report(net).calls)


@pytest.mark.parametrize("order", [1, 2])
def test_more_ticks_are_computed_where_the_output_bends(order: int) -> None:
    marks = timeline(lambda t: 1 + max(0.0, 0.5 - t) ** 3 * 400, 0.01, order)
    straight, bent = marks[3 : TICKS // 2], marks[TICKS // 2 :]
    assert straight.count("#") <= 3
    assert bent.count("#") >= 5


def test_each_output_is_reused_by_the_order_that_fits_it() -> None:
    assert timeline(lambda t: 2 + 3 * t, 0.01) == "###/#///#///////#///////////////#//////#"
    assert timeline(lambda t: 2 + 3 * t * t, 0.01) == "###/#---#-------#---------------#------#"
    assert timeline(lambda t: 2 + 3 * t * t, 0.01, 1) == "###-#--#--#--#--#--#--#-#--#-#--#-#--#-#"


def test_a_run_of_several_orders_is_frozen_and_replayed_exactly(tmp_path: Path) -> None:
    net = accelerate(Bent(lambda t: 2 + 3 * t**4).eval(), "curvature", threshold=0.01, axis="sigma")
    outputs = run(net)
    schedule = report(net).to_schedule()
    assert {mark for rows in schedule.table.values() for row in rows.values() for mark in row} == set("#-/=")
    accelerate(net, str(schedule.save_pretrained(tmp_path)))
    assert all(map(torch.equal, run(net), outputs))
    assert report(net).to_schedule().table == schedule.table


def test_the_estimated_error_is_that_of_what_was_done() -> None:
    """A line at first, which a parabola is not; parabolas then."""
    net = accelerate(Bent(lambda t: 2 + 3 * t * t).eval(), "curvature", threshold=0.01, axis="sigma")
    run(net)
    (end, last, errors), *later = report(net).records[0].errors
    assert (last, end) == (2, 4)
    assert errors["/"] > 1e-3
    lost = errors["/"] + sum((end - last - 1) * errors["-"] for end, last, errors in later)
    assert report(net).drift == pytest.approx(lost / 2 / TICKS)


def test_a_threshold_of_zero_computes_everything() -> None:
    assert timeline(lambda t: 2 + 3 * t, 0.0) == "#" * TICKS


def test_at_equal_compute_it_beats_even_spacing() -> None:
    pipe, call = zoo.load("wan"), zoo.sample_call("wan", 0, 50, 4)
    full = render(pipe, call).pictures
    controlled = render(pipe, call, CurvatureConfig())
    assert controlled.report is not None
    ticks = len(controlled.report.computed_ticks)
    spread = UniformConfig(interval=3, order=2, basis="output", warmup_steps=3, hindsight=True)
    even = render(pipe, call, spread)
    assert even.report is not None
    assert ticks <= len(even.report.computed_ticks) <= 25
    assert float((psnr(controlled.pictures, full) - psnr(even.pictures, full)).mean()) > 3
