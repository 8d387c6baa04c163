"""Predictors are exact on what they claim to be exact on."""

import json
import math

import numpy as np
import pytest

from diffcache.prediction.average_velocity import AverageVelocity
from diffcache.prediction.descriptions import predictor_from
from diffcache.prediction.predictors import (
    Chebyshev,
    Conditional,
    Hold,
    Lerp,
    Polynomial,
    Predictor,
    Scaled,
    Taylor,
)
from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.moments import Moment


def predict(predictor: Polynomial, f, moments: list[Moment], target: Moment, axis: str) -> float:  # type: ignore[no-untyped-def]
    weights = predictor.weights(moments, target)
    return sum(w * f(getattr(m, axis)) for w, m in zip(weights, moments, strict=True))


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("axis", ["sigma", "tick"])
def test_a_polynomial_of_its_order_is_reproduced(order: int, axis: str) -> None:
    moments = [Moment(7, 0.35), Moment(4, 0.6), Moment(3, 0.7)][: order + 1]
    target = Moment(9, 0.2)

    def f(u: float) -> float:
        return sum((j + 1) * u**j for j in range(order + 1))

    value = predict(Polynomial(order, axis), f, moments, target, axis)  # type: ignore[arg-type]
    assert value == pytest.approx(f(getattr(target, axis)), rel=1e-9)


def test_order_drops_while_the_history_is_short() -> None:
    assert Polynomial(2).weights([Moment(3, 0.5)], Moment(4, 0.4)) == [1.0]
    assert Polynomial(2).weights([Moment(3, 0.5), Moment(2, 0.6)], Moment(4, 0.4)) == pytest.approx(
        [2.0, -1.0]
    )


def test_repeated_or_unknown_noise_levels_fall_back_to_the_tick() -> None:
    repeated = Polynomial(1).weights([Moment(3, 0.5), Moment(2, 0.5)], Moment(4, 0.4))
    unknown = Polynomial(1).weights([Moment(3), Moment(2)], Moment(4))
    assert repeated == unknown == [2.0, -1.0]


def test_a_chebyshev_forecast_is_the_ridge_regression_and_its_mixture_with_a_line() -> None:
    ticks, target, ridge = [11, 8, 6, 4, 3, 2, 1, 0], 14, 0.1
    values = np.cos(0.3 * np.array(ticks))

    def basis(tick: int) -> list[float]:
        x = 2 * tick / 50 - 1
        return [1, x, 2 * x**2 - 1, 4 * x**3 - 3 * x, 8 * x**4 - 8 * x**2 + 1]

    # min_C |Phi C - values|^2 + ridge |C|^2, as least squares with rows for the penalty
    rows = np.vstack([[basis(tick) for tick in ticks], math.sqrt(ridge) * np.eye(5)])
    fitted = np.linalg.lstsq(rows, np.append(values, np.zeros(5)), rcond=None)[0] @ basis(target)
    line = values[0] + (target - 11) / 3 * (values[0] - values[1])
    past = [Moment(tick) for tick in ticks]
    for mixture in (0.0, 0.5, 1.0):
        weights = Chebyshev(20, 50, 4, ridge, mixture).weights(past, Moment(target))
        assert weights @ values == pytest.approx(mixture * fitted + (1 - mixture) * line)


def test_hold_takes_the_newest() -> None:
    assert Hold().weights([Moment(3)], Moment(9)) == [1.0]


def test_taylor_is_the_published_recursion() -> None:
    """F_0 = y, F_{i+1} = (F_i - old F_i) / (ticks between), as long as an old F_i exists and tick > warm-up - 2."""
    computed, order, warmup = [0, 1, 2, 8, 14], 3, 3
    values = {tick: float(tick**3 - 7 * tick) for tick in computed}
    factors: list[float] = []
    last = 0
    for n, tick in enumerate(computed):
        new = [values[tick]]
        for i in range(order):
            if len(factors) > i and tick > warmup - 2:
                new.append((new[i] - factors[i]) / (tick - last))
        factors, last = new, tick
        past = [Moment(t) for t in computed[n::-1]][: order + 1]
        for target in range(tick + 1, tick + 6):
            expected = sum(f * (target - tick) ** i / math.factorial(i) for i, f in enumerate(factors))
            weights = Taylor(order, first=warmup - 2).weights(past, Moment(target))
            assert sum(w * values[m.tick] for w, m in zip(weights, past, strict=True)) == pytest.approx(
                expected
            )


def test_first_order_taylor_is_the_line_through_two_features() -> None:
    past, target = [Moment(8), Moment(2)], Moment(11)
    assert Taylor(1).weights(past, target) == pytest.approx(Polynomial(1, "tick").weights(past, target))


def test_lerp_goes_on_beyond_the_newest_feature() -> None:
    assert Lerp(0.5).weights([Moment(4), Moment(2)], Moment(5)) == [1.5, -0.5]
    assert Lerp(0.5).weights([Moment(4)], Moment(5)) == [1.0]


def test_scaled_multiplies_the_ratios_in_between() -> None:
    assert Scaled([1, 2, 3, 5]).weights([Moment(1)], Moment(3)) == [15]


def test_an_average_velocity_is_meancaches_rule_on_a_trajectory() -> None:
    # Levels 1, 0.8, 0.5, 0.4, 0.1, 0; ticks 0 and 1 are computed, with velocities 2 and 5. From z = 7 the samples are
    # 7, 6.6 (7 - 0.2 * 2) and 5.1 (6.6 - 0.3 * 5).
    rule = AverageVelocity([1.0, 0.8, 0.5, 0.4, 0.1, 0.0], [0, 0, 2, 1, 3])
    past, velocities = [Moment(1), Moment(0)], [5.0, 2.0]

    def value(tick: int) -> float:
        return sum(w * v for w, v in zip(rule.weights(past, Moment(tick)), velocities, strict=True))

    # tick 2 looks back to 0: J = ((5.1 - 7) / -0.5 - 2) / -0.5 = -3.6, u = 5 + (0.4 - 0.5) J
    assert value(2) == pytest.approx(5.36)
    # tick 3 looks back one tick, which says nothing of a slope
    assert value(3) == pytest.approx(5.36)
    # z = 5.1 - 0.1 * 5.36 - 0.3 * 5.36 = 2.956 at tick 4, which looks back to 1: J = ((2.956 - 6.6) / -0.7 - 5) / -0.7
    slope = ((2.956 - 6.6) / -0.7 - 5) / -0.7
    assert value(4) == pytest.approx(5.36 + (0.0 - 0.1) * slope)
    assert rule.depth == 2


def test_an_average_velocity_keeps_as_much_as_its_sums_reach_back_to() -> None:
    levels = [1 - tick / 8 for tick in range(9)]
    assert AverageVelocity(levels, [0, 0, 0, 0, 1, 0, 1, 1]).depth == 1
    assert AverageVelocity(levels, [0, 0, 0, 0, 3, 0, 1, 1]).depth == 3  # tick 4 sees 1, 2, 3
    assert (
        AverageVelocity(levels, [0, 0, 0, 0, 3, 0, 2, 1]).depth == 4
    )  # tick 6 sees 4, which sees 1, 2, 3; and 5


@pytest.mark.parametrize(
    "predictor",
    [
        Hold(),
        Polynomial(2, "tick"),
        Taylor(2, 1),
        Lerp(0.3),
        Scaled([1.0, 0.9]),
        Chebyshev(9, 50, 4, 0.1, 0.5),
        AverageVelocity([1.0, 0.7, 0.5, 0.2, 0.0], [0, 0, 2, 1]),
    ],
)
def test_what_describes_a_predictor_makes_it_again(predictor: Predictor) -> None:
    again = predictor_from(json.loads(json.dumps(predictor.describe())))
    assert type(again) is type(predictor)
    assert again.describe() == predictor.describe()


def test_a_covariance_of_another_velocity_is_refused() -> None:
    described = Conditional(np.eye(3), 1e-3).describe()
    assert isinstance(predictor_from(described), Conditional)
    del described["of"]
    with pytest.raises(ScheduleError, match="of an older version's velocities: tune again"):
        predictor_from(described)
