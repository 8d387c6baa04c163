"""Error control: the cheapest plan that keeps a threshold, by what was expected and by what the run shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from zoo.pipelines import CASES

from diffcache import accelerate, denoising_run, report
from diffcache.host.components import has_autoencoder
from diffcache.recipes.trajectory import TrajectoryConfig
from diffcache.schedulers.moments import Moment, signal_and_noise
from diffcache.schedulers.steps import Decision, Step
from diffcache.trajectory.control import ENOUGH, OFF, SPEEDUPS, TYPICAL, ExpectedErrorControl, cheapest
from diffcache.trajectory.error_model import WINDOW, Caution
from diffcache.trajectory.following import MADE_UP_ERRORS, USUAL, PlanFollower, PlannedTicks, contrast_at
from diffcache.trajectory.plan import TrajectoryPlan

TICKS = 40


def plan(speedup: float) -> TrajectoryPlan:
    """Evenly spaced; the expected error is a hundredth of the speed-up, and nothing where all is computed."""
    ticks = tuple(range(0, TICKS, round(speedup)))
    return TrajectoryPlan(ticks, Caution(1e-3, 0.0), 0.0 if speedup == 1 else speedup / 100)


def control(threshold: float, expected: float = 0.1, in_velocities: bool = True) -> ExpectedErrorControl:
    return ExpectedErrorControl(TICKS, plan, lambda past, at: expected, reused_in, threshold, in_velocities)


def planned_ticks(in_velocities: bool = True) -> PlannedTicks:
    """They compute ticks 0, 4 and 8, and expect an error of 0.01 of the result."""
    followed = TrajectoryPlan((0, 4, 8), Caution(1e-3, 0.0), 0.01)
    return PlannedTicks(followed, lambda past, at: 0.1, lambda computed: 0.01, in_velocities)


def reused_in(ticks: Sequence[int]) -> float:
    """What is expected of a run that computes these: the share of the others."""
    return 1 - len(ticks) / TICKS


def squares(error: float) -> list[float]:
    """Of a velocity of size 1, and of an error; the variance of a sample that shows no contrast."""
    return [1.0, error**2, 0.0]


def computed(made: ExpectedErrorControl, measured: Callable[[int], float] = lambda tick: 0.1) -> list[int]:
    """What it computes, if predictions are measured to be off by so much."""
    ticks: list[int] = []
    for tick in range(TICKS):
        if tick == 0 or asked(made, tick) is Decision.COMPUTE:
            if ticks:
                past = [Moment(t) for t in reversed(ticks[-4:])]
                made.compared(past, Moment(tick), torch.tensor(squares(measured(tick))))
            ticks.append(tick)
    return ticks


def asked(made: ExpectedErrorControl, tick: int) -> Decision:
    """What it decides, as the engine asks it."""
    signal = made.measure([])
    return made.decide(Step(tick, TICKS, "0"), None if signal is None else signal.tolist())


@pytest.mark.parametrize(("threshold", "distance"), [(0.01, 1), (0.02, 2), (0.034, 3), (0.04, 4), (9.0, 8)])
def test_the_cheapest_plan_that_keeps_the_threshold_is_followed(threshold: float, distance: int) -> None:
    expected = {1: range(TICKS), 2: range(0, TICKS, 2)}.get(distance)
    found = computed(control(TYPICAL * threshold), lambda tick: 0.1)
    gaps = np.diff(found)
    assert gaps.max() == min(distance, 8)
    assert expected is None or found == list(expected)


@pytest.mark.parametrize("first", [0, 7, 20])
def test_a_denoiser_that_takes_over_computes_the_ticks_of_the_plan_from_its_first_one_on(first: int) -> None:
    """It is asked for the first time when it has computed one tick, whenever that was."""
    made = control(TYPICAL * 0.04)
    found = [made.decide(Step(tick, TICKS, "0"), None).computes for tick in range(first + 1, first + 5)]
    assert found.index(True) == 3 - first % 4


def test_a_denser_plan_is_followed_at_its_own_ticks() -> None:
    """With the gaps of the plan, counted from where the run stands, the last ticks of a run would be missed."""
    found = computed(control(TYPICAL * 0.08), lambda tick: 0.1 * 2.5**3 if tick == 8 else 0.1)
    assert found == [0, 8, *range(9, TICKS, 3)]


def test_a_threshold_of_zero_computes_everything() -> None:
    assert computed(control(0.0)) == list(range(TICKS))


def test_a_run_keeps_to_its_plan_unless_errors_are_larger() -> None:
    *near, worse, worst = (
        len(computed(control(0.06), lambda tick, factor=factor: 0.1 * factor))
        for factor in (0.03, 0.5, 1.0, 1.5, 3.0, 30.0)
    )
    assert len({*near}) == 1
    assert near[0] < worse < worst


def test_a_run_that_goes_over_to_computing_everything_says_why() -> None:
    as_planned, much_worse = control(0.2), control(0.2)
    assert len(computed(as_planned)) < TICKS / 2
    ticks = computed(much_worse, lambda tick: 10.0)
    assert TICKS / 2 < len(ticks) < TICKS
    assert as_planned.remark(0.05) is None
    without_reuse = control(0.001)
    assert len(computed(without_reuse, lambda tick: 10.0)) == TICKS
    assert without_reuse.remark(0.0) is None
    remark = much_worse.remark(0.05)
    assert remark is not None
    assert "worse than planned: what was left of the run was computed" in remark


@pytest.mark.parametrize(("times", "denser"), [(0.95, False), (1.05, True)])
def test_they_are_larger_by_a_factor(times: float, denser: bool) -> None:
    made = control(TYPICAL * 0.04)
    error = 0.1 * (times * OFF) ** (1 + MADE_UP_ERRORS)  # one error beside those that were foretold
    made.compared([Moment(0)], Moment(4), torch.tensor(squares(error)))
    decisions = [asked(made, tick) for tick in range(5, 9)]
    assert (decisions.index(Decision.COMPUTE) < 3) is denser


def test_it_is_the_last_few_errors_that_say_so() -> None:
    found = computed(control(0.08), lambda tick: 0.1 if tick < 24 else 0.3)
    assert np.diff(found).tolist() == [4] * 8 + [2] * 3  # two large errors among the last four


@pytest.mark.parametrize(("worse_from", "last_gap"), [(6, 1), (32, 2)])
def test_where_no_plan_keeps_the_threshold_the_rest_is_computed_only_if_that_mends_much(
    worse_from: int, last_gap: int
) -> None:
    found = computed(control(0.04), lambda tick: 0.1 if tick < worse_from else 100.0)
    gaps = np.diff(found)
    assert (gaps[0], gaps[-1]) == (2, last_gap)


@pytest.mark.parametrize("first", [0, 24])
def test_what_another_denoiser_did_before_counts_as_computed(first: int) -> None:
    made = control(0.04)
    assert made.decide(Step(first + 1, TICKS, "0"), None) is Decision.PREDICT
    made.compared([Moment(first)], Moment(first + 2), torch.tensor(squares(100.0)))
    assert asked(made, first + 3) is Decision.COMPUTE


def test_a_run_goes_on_with_no_sparser_plan() -> None:
    gaps = np.diff(computed(control(0.16), lambda tick: 1.0 if tick < 14 else 0.2))
    assert gaps[0] == 8
    assert (np.diff(gaps) <= 0).all()


def test_errors_of_ticks_that_guards_computed_count_and_so_does_the_last_one() -> None:
    made = control(TYPICAL * 0.04)
    for tick in (1, 2, 3):  # the scheduler is not asked
        made.compared([Moment(tick - 1)], Moment(tick), torch.tensor(squares(0.4)))
    assert len([*made.held()]) == 3
    for tick in (4, 5, 6):
        asked(made, tick)
    assert made.measure([]) is None
    made.compared([Moment(3)], Moment(7), torch.tensor(squares(0.4)))
    assert made.expected_error([0]) > 0
    assert made.surprise == pytest.approx(4 ** (4 / (4 + MADE_UP_ERRORS)))


def measured(errors: Sequence[float]) -> ExpectedErrorControl:
    """After errors of which 0.1 was expected."""
    made = control(0.03)
    for newest, error in enumerate(errors, WINDOW):
        past = [Moment(newest - before) for before in range(1, WINDOW + 1)]
        made.compared(past, Moment(newest), torch.tensor(squares(error)))
        asked(made, newest + 1)
    return made


def test_surprise_is_measured_over_expected_errors_where_expected_ones_count_as_well() -> None:
    errors = [9.0, 1.0, 2.0, 4.0, 8.0]
    assert measured(errors).surprise == pytest.approx((90 * 10 * 20 * 40 * 80) ** (1 / (5 + MADE_UP_ERRORS)))
    assert measured([0.1]).surprise == pytest.approx(1)


@pytest.mark.parametrize("nothing", [(1.0, 0.0), (0.0, 1.0)])
def test_an_error_of_nothing_says_nothing(nothing: tuple[float, float]) -> None:
    made = control(0.03)
    made.learn([1, 0], nothing)
    assert made.surprise == 1
    made.learn([2, 1, 0], squares(0.4)[:2])
    assert made.surprise == pytest.approx(4 ** (1 / (1 + MADE_UP_ERRORS)))


@pytest.mark.parametrize("broken", [(1.0, math.inf), (math.inf, math.inf), (math.nan, math.nan)])
def test_after_an_error_that_is_not_finite_any_error_is_expected(broken: tuple[float, float]) -> None:
    made = control(0.16)
    assert made.decide(Step(1, TICKS, "0"), None) is Decision.PREDICT
    made.compared([Moment(0)], Moment(2), torch.tensor([*broken, 0.0]))
    assert asked(made, 3) is Decision.COMPUTE
    assert made.expected_error([0, 2, 3]) == math.inf


@pytest.mark.parametrize("options", [{"threshold": 0.1}, {"speedup": 2}])
def test_the_report_of_outputs_that_are_not_numbers_expects_no_small_error(
    options: dict[str, float], tmp_path: Path
) -> None:
    net = accelerate(Bent(lambda t: 2 + t if t > 0.5 else math.nan).eval(), **options)
    run(net)
    assert "expected error of the result: more than 100%" in report(net).summary()
    schedule = report(net).to_schedule()
    assert accelerate(net, str(schedule.save_pretrained(tmp_path))) is net


@pytest.mark.parametrize("is_flow", [False, True])
@pytest.mark.parametrize("angle", [0.0, 0.3, 0.78])
def test_a_late_sample_shows_the_contrast_of_the_result(angle: float, is_flow: bool) -> None:
    moment = Moment(7, angle=angle, is_flow=is_flow)
    signal, noise = signal_and_noise(angle, is_flow)
    assert contrast_at(moment, (0.3 * signal) ** 2 + noise**2) == pytest.approx(0.3)


def test_an_early_sample_shows_no_contrast_and_neither_does_one_with_less_variance_than_noise() -> None:
    assert contrast_at(Moment(7, angle=0.8), 1.0) is None
    assert contrast_at(Moment(7), 1.0) is None
    late = Moment(7, angle=0.5)
    assert contrast_at(late, math.sin(0.5) ** 2) is None
    assert contrast_at(late, math.nan) is None
    assert contrast_at(late, math.inf) is None


def test_an_error_is_expected_as_a_fraction_of_the_contrast_that_was_measured() -> None:
    made, late = planned_ticks(in_velocities=False), Moment(8, angle=0.0)
    assert made.contrast_factor == USUAL
    made.take_in([Moment(4), Moment(0)], [4.0, 0.0, 5.0])  # an early sample
    assert made.contrast_factor == USUAL
    made.take_in([late, Moment(4), Moment(0)], [2.0, 0.0, 0.09])
    assert made.contrast_factor == pytest.approx(math.sqrt(3) / 0.3)
    assert made.expected_error([0, 4, 8]) == pytest.approx(0.01 * made.contrast_factor)
    of_pictures = planned_ticks()
    of_pictures.take_in([late, Moment(4), Moment(0)], [2.0, 0.0, 0.09])
    assert of_pictures.expected_error([0, 4, 8]) == 0.01


def test_a_run_whose_result_has_little_contrast_goes_on_with_a_denser_plan() -> None:
    ticks = {}
    for contrast in (1.0, 0.2):
        made, ticks[contrast] = control(0.16, in_velocities=False), [0]
        for tick in range(1, TICKS):
            if asked(made, tick) is Decision.COMPUTE:
                past = [Moment(t) for t in reversed(ticks[contrast][-4:])]
                at = Moment(tick, angle=0.1)
                variance = (contrast * math.cos(0.1)) ** 2 + math.sin(0.1) ** 2
                made.compared(past, at, torch.tensor([2.0, 0.02, variance]))
                ticks[contrast].append(tick)
    assert len(ticks[0.2]) > len(ticks[1.0])


def test_the_less_contrast_a_result_has_the_larger_is_the_error_that_a_run_expects() -> None:
    expected, start = [], torch.randn(4, 4, 16, generator=torch.Generator().manual_seed(0))
    for contrast in (1.0, 0.3):
        net, sample = accelerate(Bent(lambda t: 2 + t**2).eval(), speedup=2), contrast * start
        with torch.no_grad(), denoising_run(net, TICKS, sigmas=[1 - i / TICKS for i in range(TICKS)]) as loop:
            for i in range(TICKS):
                loop.begin_step(i)
                sample = sample - net(sample, 1 - i / TICKS) / TICKS
        expected.append(report(net).expected_error)
    assert expected[1] == pytest.approx(expected[0] / 0.3, rel=0.02)


def test_errors_of_pictures_are_expected_where_a_pipeline_decodes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flux = CASES["FluxPipeline"]
    pipe = accelerate(flux.build(), speedup=2)
    assert has_autoencoder(pipe)
    flux.render(pipe, 0, 10)
    of_pictures = report(pipe).expected_error
    assert of_pictures is not None
    monkeypatch.setattr("diffcache.trajectory.following.LATE", 0.0)  # no contrast is seen
    monkeypatch.setattr("diffcache.engine.pipeline_scope.has_autoencoder", lambda pipeline: False)
    pipe = accelerate(flux.build(), speedup=2)
    flux.render(pipe, 0, 10)
    assert report(pipe).expected_error == pytest.approx(USUAL * of_pictures)
    pipe.vae = None
    assert not has_autoencoder(pipe)


def test_errors_are_measured_by_the_size_of_all_velocities() -> None:
    made = control(0.03)
    made.learn([1, 0], [1.0, 0.01])
    made.learn([2, 1, 0], [9.0, 0.05])
    assert made.surprise == pytest.approx(1)


@pytest.mark.parametrize("factor", [0.03, 30.0])
def test_what_is_expected_is_of_the_ticks_that_were_computed_whatever_plan_came_last(factor: float) -> None:
    made = control(0.06)
    ticks = computed(made, lambda tick: 0.1 * factor)
    assert made.expected_error(ticks) == pytest.approx(made.surprise * reused_in(ticks))
    assert made.expected_error(ticks) > 0


@pytest.mark.parametrize(
    ("saves", "expected", "speedup"),
    [(2.0, 0.0099, 2.0), (1.8, 0.0089, 1.8), (1.8, 0.0099, 1.0), (1.6, 0.0079, 1.6), (1.6, 0.0089, 1.0)],
)
def test_a_plan_that_saves_little_must_be_safer(saves: float, expected: float, speedup: float) -> None:
    def plans(asked: float) -> TrajectoryPlan:
        known = 0.0 if asked == 1 else expected if asked <= saves else 1.0
        return TrajectoryPlan((0,), Caution(1e-3, 0.0), known)

    assert cheapest(plans, TYPICAL, 0.02) == speedup


@pytest.mark.parametrize("power", [0.5, 2.0, 3.0, 4.0, 20.0])
@pytest.mark.parametrize("scale", [1e-6, 1e-4, 1e-3, 1e-2, 1.0])
def test_the_largest_speed_up_that_keeps_the_threshold_is_found_with_few_plans(
    power: float, scale: float
) -> None:
    made: list[float] = []

    def plans(asked: float) -> TrajectoryPlan:
        made.append(asked)
        return TrajectoryPlan((0,), Caution(1e-3, 0.0), 0.0 if asked == 1 else scale * asked**power)

    found = cheapest(plans, TYPICAL, 0.05)
    assert found == max(
        speedup
        for speedup in SPEEDUPS
        if speedup == 1 or TYPICAL * scale * speedup**power <= 0.05 * min(speedup / ENOUGH, 1)
    )
    if 2 <= power <= 4:
        assert len({*made} - {1.0}) <= 5


def test_plans_are_listed_from_the_cheapest_to_the_full_run() -> None:
    assert list(SPEEDUPS) == sorted(SPEEDUPS, reverse=True)
    assert SPEEDUPS[-1] == 1


class Bent(nn.Module):
    """An output that depends on time alone, by a given function. It is in training mode before the step `guarded_until`."""

    def __init__(self, function: Callable[[float], float]) -> None:
        super().__init__()
        self.function = function
        self.guarded_until = 0

    def forward(self, hidden_states: Tensor, timestep: float) -> Tensor:
        return torch.full_like(hidden_states, self.function(timestep))


def run(net: Bent) -> list[Tensor]:
    sigmas = [1 - tick / TICKS for tick in range(TICKS)]
    outputs = []
    with torch.no_grad(), denoising_run(net, num_steps=TICKS, sigmas=[*sigmas, 0.0]) as loop:
        for tick, sigma in enumerate(sigmas):
            loop.begin_step(tick)
            net.train(tick < net.guarded_until)  # the engine computes in training mode
            outputs.append(net(torch.zeros(1, 4, 8, 8) + sigma, sigma))
    return outputs


def share(function: Callable[[float], float], threshold: float) -> float:
    net = accelerate(Bent(function).eval(), threshold=threshold)
    run(net)
    return float(report(net).compute_fraction)


def test_an_output_that_bends_is_computed_more_often_than_one_that_does_not() -> None:
    assert share(lambda t: 2 + np.sin(40 * t), 0.05) > 1.5 * share(lambda t: 2 + t, 0.05)


def test_the_larger_the_threshold_the_less_is_computed() -> None:
    shares = [share(lambda t: 2 + np.sin(5 * t), threshold) for threshold in (0.0, 0.001, 0.01, 0.1, 0.2)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1
    assert shares[-1] < 0.5


def test_a_run_is_frozen_and_replayed_exactly(tmp_path: Path) -> None:
    net = accelerate(Bent(lambda t: 2 + 3 * t**4).eval(), threshold=0.05)
    outputs = run(net)
    schedule, expected = report(net).to_schedule(), report(net).expected_error
    assert expected is not None
    assert expected > 0
    accelerate(net, str(schedule.save_pretrained(tmp_path)))
    assert all(map(torch.equal, run(net), outputs))
    assert report(net).to_schedule().table == schedule.table
    assert report(net).expected_error == expected


def test_the_report_says_which_error_is_expected_and_it_is_below_the_threshold() -> None:
    net = accelerate(Bent(lambda t: 2 + np.sin(5 * t)).eval(), threshold=0.05)
    run(net)
    expected = report(net).expected_error
    assert expected is not None
    assert 0 < expected <= 0.05 / TYPICAL
    assert f"expected error of the result: {expected:.2%}" in report(net).summary()


def test_the_report_of_a_speed_up_says_which_error_is_expected_by_what_was_measured() -> None:
    expected = []
    for pace in (1, 20):
        net = accelerate(Bent(lambda t, pace=pace: 2 + np.sin(pace * t)).eval(), speedup=2)  # type: ignore[misc]
        run(net)
        expected.append(report(net).expected_error)
    assert 0 < 3 * expected[0] < expected[1]


@pytest.mark.parametrize("options", [{"threshold": 0.1}, {"speedup": 2}])
def test_the_report_expects_less_where_a_guard_computes_more_and_nothing_where_all_is_computed(
    options: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlanFollower, "surprise", 1.0)
    # In training mode the first tick shows no scale of guidance, and plans would differ by that.
    monkeypatch.setattr(TrajectoryConfig, "counts_guidance", False)
    net, expected = accelerate(Bent(lambda t: 2 + t**2).eval(), **options), []
    for guarded_until in (TICKS, TICKS // 2, 0):
        net.guarded_until = guarded_until  # type: ignore[assignment]
        run(net)
        expected.append(report(net).expected_error)
    assert not expected[0]
    assert 0 < expected[1] < expected[2]  # type: ignore[operator]


@pytest.mark.parametrize(("times", "is_said"), [(0.98, False), (1.02, True)])
def test_a_run_that_misses_its_threshold_says_so(
    times: float, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = accelerate(Bent(lambda t: 2 + t**2).eval(), threshold=0.05)
    monkeypatch.setattr(PlanFollower, "surprise", 1.0)
    monkeypatch.setattr(ExpectedErrorControl, "expected_error", lambda self, computed: times * 0.05 / TYPICAL)
    run(net)
    assert ("threshold=0.05 is meant to keep it below 2.5%" in report(net).summary()) is is_said


def test_a_speed_up_of_one_is_said_to_leave_nothing_to_reuse() -> None:
    net = accelerate(Bent(lambda t: 2 + t).eval(), speedup=1)
    run(net)
    assert f"speedup=1 leaves nothing to reuse in {TICKS} ticks" in report(net).summary()
    assert "threshold" not in report(net).summary()


def test_planned_ticks_are_computed_and_others_predicted_whatever_is_measured() -> None:
    made = planned_ticks()
    assert not made.adaptive  # so nothing is read from the device in the run
    decided = []
    for tick in range(1, 12):
        decided.append(made.decide(Step(tick, TICKS, "0"), None))
        if tick in (4, 8):
            made.compared([Moment(tick - 4)], Moment(tick), torch.tensor(squares(9.0)))
    assert [tick for tick, decision in enumerate(decided, 1) if decision is not Decision.PREDICT] == [4, 8]


def test_what_planned_ticks_measured_is_read_at_the_end_and_once() -> None:
    made = planned_ticks()
    assert made.expected_error([0, 4, 8]) == pytest.approx(0.01)
    for error, *past in ((9.0, 0), (4000.0, 4, 0)):
        made.compared([Moment(tick) for tick in past], Moment(past[0] + 4), torch.tensor(squares(error)))
    assert [held.tolist() for held in made.held()] == [squares(9.0), squares(4000.0)]
    for _ in range(2):
        assert made.expected_error([0, 4, 8]) == pytest.approx(
            0.01 * (90 * 40_000) ** (1 / (2 + MADE_UP_ERRORS))
        )
    assert [*made.held()] == []
