"""Predictors are exact on what they claim to be exact on."""

import pytest

from diffcache.predictors import Hold, Moment, Polynomial


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


def test_hold_takes_the_newest() -> None:
    assert Hold().weights([Moment(3)], Moment(9)) == [1.0]
