"""Error control: what it expects is what interpolation theory says, and it spends its ticks where the output bends."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from diffcache import accelerate, denoising_run, report
from diffcache.evals import zoo
from diffcache.evals.fidelity import psnr
from diffcache.evals.rendering import render
from diffcache.recipes.budget import BudgetConfig
from diffcache.recipes.curvature import CurvatureConfig
from diffcache.schedulers.error_control import ErrorControl
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


def test_it_holds_where_holding_is_expected_to_be_better() -> None:
    control = ErrorControl(threshold=1.0)
    control.compared([at(1), at(0)], at(2), torch.tensor([0.3, 0.1]))
    assert control.decide(Step(3, 9, "0"), [0.3, 0.1]) is Decision.HOLD
    assert control.error == pytest.approx(0.1)


def test_it_computes_at_the_threshold_without_history_and_starts_anew() -> None:
    control = ErrorControl(threshold=0.25)
    assert control.decide(Step(0, 9, "0"), None) is Decision.COMPUTE
    control.compared([at(1), at(0)], at(2), torch.tensor([0.1, 0.1]))
    decisions = [control.decide(Step(tick, 9, "0"), [0.1, 0.1]).computes for tick in (3, 4)]
    assert decisions == [False, True]
    control.computed([], [])
    assert control.error == 0


def test_one_stored_feature_can_only_be_held() -> None:
    control = ErrorControl(threshold=1.0)
    control.compared([at(0)], at(1), torch.tensor([0.0, 0.1]))
    assert control.decide(Step(2, 9, "0"), [0.0, 0.1]) is Decision.HOLD


def test_a_tick_at_the_same_noise_level_costs_nothing() -> None:
    control = ErrorControl(threshold=1.0)
    control.compared([at(1, 0.8), at(0, 0.9)], at(2, 0.7), torch.tensor([0.1, 0.1]))
    control.decide(Step(3, 9, "0", 0.7, repeats_sigma=True), [0.1, 0.1])
    assert control.error == 0


def test_repeated_noise_levels_are_counted_in_ticks() -> None:
    """Heun's and PNDM's second evaluations stand where the next tick stands."""
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


def timeline(function: Callable[[float], float], threshold: float) -> str:
    net = accelerate(Bent(function).eval(), "curvature", threshold=threshold)
    sigmas = [1 - tick / TICKS for tick in range(TICKS)]
    with torch.no_grad(), denoising_run(net, num_steps=TICKS, sigmas=[*sigmas, 0.0]) as run:
        for tick, sigma in enumerate(sigmas):
            run.begin_step(tick)
            net(torch.zeros(1, 4, 8, 8) + sigma, sigma)
    return "".join("#" if computed else "-" for computed in report(net).decisions[:, 0, 0])


def test_on_a_straight_line_gaps_double() -> None:
    assert timeline(lambda t: 2 + 3 * t, 0.01) == "###-#---#-------#---------------#------#"


def test_ticks_go_where_the_output_bends() -> None:
    marks = timeline(lambda t: 1 + max(0.0, 0.5 - t) ** 3 * 40, 0.05)
    straight, bent = marks[3 : TICKS // 2], marks[TICKS // 2 :]
    assert straight.count("#") <= 3
    assert bent.count("#") >= 5


def test_a_threshold_of_zero_computes_everything() -> None:
    assert timeline(lambda t: 2 + 3 * t, 0.0) == "#" * TICKS


def test_at_equal_compute_it_beats_even_spacing() -> None:
    pipe, call = zoo.load("wan"), zoo.sample_call("wan", 0, 50, 4)
    full = render(pipe, call).pictures
    controlled = render(pipe, call, CurvatureConfig())
    assert controlled.report is not None
    ticks = len(controlled.report.computed_ticks)
    even = render(pipe, call, BudgetConfig(speedup=50 / ticks))
    assert even.report is not None
    assert len(even.report.computed_ticks) == ticks <= 25
    assert float((psnr(controlled.pictures, full) - psnr(even.pictures, full)).mean()) > 3
