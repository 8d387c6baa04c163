"""The expected error of a result, against runs that are simulated tick by tick."""

import numpy as np
import pytest

from diffcache.trajectory.gaussian import BETWEEN, conditional_weights
from diffcache.trajectory.process import Process
from diffcache.trajectory.result_error import WINDOW, ResultError, Trust

TICKS = 12
POSITIONS = np.linspace(0, 2, TICKS)
INFLUENCE = -np.linspace(0.06, 0.12, TICKS)
SENSITIVITY = np.geomspace(4.0, 0.25, TICKS)
PROCESS = Process(np.exp(-((POSITIONS[:, None] - POSITIONS[None, :]) ** 2)) + 1e-3 * np.eye(TICKS), POSITIONS)
TRUST = Trust(1e-3, 1e-2)
RATIO = 1.3
"""So small that some ticks are not corrected."""


def error(response: float = 0.0, ratio: float = RATIO) -> ResultError:
    return ResultError(PROCESS, INFLUENCE, SENSITIVITY, ratio, TRUST, response)


def simulated(computed: list[int], response: float, ratio: float, draws: int = 200_000) -> float:
    """Mean squared error of the result of runs through one tick after the other."""
    generator = np.random.default_rng(0)
    truth = generator.multivariate_normal(np.zeros(TICKS), PROCESS.covariance, size=draws).T
    believed = PROCESS.believed(TRUST.roughness)
    result, known, outputs, waiting = np.zeros(draws), [], {}, {}
    for tick in range(TICKS):
        past = known[-WINDOW:]
        if tick not in computed:
            weights = conditional_weights(believed, past, [tick], TRUST.noise)[:, 0]
            waiting[tick] = sum(w * outputs[j] for w, j in zip(weights, past, strict=True))
            result += SENSITIVITY[tick] * INFLUENCE[tick] * (waiting[tick] - truth[tick])
            continue
        noise = response * result.std() / SENSITIVITY[tick] * generator.standard_normal(draws)
        outputs[tick] = truth[tick] + noise
        for reused, used in waiting.items():
            if abs(INFLUENCE[reused]) <= ratio * abs(INFLUENCE[tick]):
                weights = conditional_weights(PROCESS.covariance, [*past, tick], [reused], BETWEEN)[:, 0]
                found = sum(w * outputs[j] for w, j in zip(weights, [*past, tick], strict=True))
                result = result + SENSITIVITY[tick] * INFLUENCE[reused] * (found - used)
        waiting = {}
        known.append(tick)
    return float((result**2).mean())


@pytest.mark.parametrize("computed", [[0, 3, 6, 9, 11], [0, 2, 3, 7, 8, 10], [0, 6], [0]])
@pytest.mark.parametrize("response", [0.0, 3.0])
@pytest.mark.parametrize("ratio", [0.0, RATIO, 3.0])
def test_it_is_what_simulated_runs_have(computed: list[int], response: float, ratio: float) -> None:
    expected = simulated(computed, response, ratio)
    assert error(response, ratio)(computed) == pytest.approx(expected, rel=0.03)


def test_a_full_run_has_none() -> None:
    assert error(4.0)(list(range(TICKS))) == 0


def test_correcting_helps_and_a_responding_denoiser_costs() -> None:
    computed = [0, 3, 6, 9, 11]
    assert error(ratio=3.0)(computed) < error(ratio=0.0)(computed)
    assert error(4.0)(computed) > error(2.0)(computed) > error(0.0)(computed)


def test_errors_are_counted_as_they_are_felt() -> None:
    computed, sensitive = (
        [0, 3, 6, 9, 11],
        ResultError(PROCESS, INFLUENCE, 2 * SENSITIVITY, RATIO, TRUST, 3.0),
    )
    assert sensitive(computed) == pytest.approx(4 * error(3.0)(computed))
