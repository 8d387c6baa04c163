"""The expected error of a result, against runs that are followed tick by tick."""

import numpy as np
import pytest

from diffcache.trajectory.gaussian import BETWEEN, conditional_weights
from diffcache.trajectory.process import Process
from diffcache.trajectory.response import SHARES, Response
from diffcache.trajectory.result_error import DOUBT, DOUBTED, DOUBTED_SHARES, WINDOW, ResultError, Trust

TICKS = 12
POSITIONS = np.linspace(0, 2, TICKS)
INFLUENCE = -np.linspace(0.06, 0.12, TICKS)
EVEN = np.ones(TICKS)
ANSWERS = np.stack([np.linspace(8, 4, TICKS), np.linspace(2, 1, TICKS), np.linspace(-3, 0.5, TICKS)])
PROCESS = Process(np.exp(-((POSITIONS[:, None] - POSITIONS[None, :]) ** 2)) + 1e-3 * np.eye(TICKS), POSITIONS)
TRUST = Trust(1e-3, 1e-2)
RATIO = 1.3
"""So small that some ticks are not corrected."""


def error(answering: float = 0.0, ratio: float = RATIO, pace: np.ndarray = EVEN) -> ResultError:
    return ResultError(PROCESS, INFLUENCE, pace, Response(answering * ANSWERS), ratio, TRUST)


def followed(computed: list[int], answers: np.ndarray, ratio: float) -> float:
    """Mean squared error of the result of runs through one tick after the other. All is linear in the true outputs."""
    believed = PROCESS.believed(TRUST.roughness)
    truth = np.eye(TICKS)
    off, known, outputs, waiting = np.zeros(TICKS), [], {}, {}
    for tick in range(TICKS):
        past = known[-WINDOW:]
        if tick not in computed:
            weights = conditional_weights(believed, past, [tick], TRUST.noise)[:, 0]
            waiting[tick] = sum(w * outputs[j] for w, j in zip(weights, past, strict=True))
            off = off + INFLUENCE[tick] * (waiting[tick] - truth[tick])
            continue
        outputs[tick] = truth[tick] + answers[tick] * off
        off = off + INFLUENCE[tick] * answers[tick] * off
        for reused, used in waiting.items():
            if abs(INFLUENCE[reused]) <= ratio * abs(INFLUENCE[tick]):
                weights = conditional_weights(PROCESS.covariance, [*past, tick], [reused], BETWEEN)[:, 0]
                found = sum(w * outputs[j] for w, j in zip(weights, [*past, tick], strict=True))
                off = off + INFLUENCE[reused] * (found - used)
        waiting = {}
        known.append(tick)
    return float(off @ PROCESS.covariance @ off)


@pytest.mark.parametrize("computed", [[0, 3, 6, 9, 11], [0, 2, 3, 7, 8, 10], [0, 6], [0]])
@pytest.mark.parametrize("answering", [0.0, 1.0])
@pytest.mark.parametrize("ratio", [0.0, RATIO, 3.0])
def test_it_is_what_runs_have_in_the_mean_over_parts_and_doubts(
    computed: list[int], answering: float, ratio: float
) -> None:
    expected = sum(
        doubt_share * share * followed(computed, doubt * answering * answers, ratio)
        for doubt, doubt_share in zip(DOUBT**DOUBTED, DOUBTED_SHARES, strict=True)
        for share, answers in zip(SHARES, ANSWERS, strict=True)
    )
    assert error(answering, ratio)(computed) == pytest.approx(expected, rel=1e-9)


def test_a_full_run_has_none() -> None:
    assert error(4.0)(list(range(TICKS))) == 0


def test_correcting_helps() -> None:
    computed = [0, 3, 6, 9, 11]
    assert error(ratio=3.0)(computed) < error(ratio=0.0)(computed)


def test_a_stiff_denoiser_makes_long_gaps_unstable() -> None:
    apart, near = [0, 4, 8, 11], [0, 2, 4, 6, 8, 10, 11]
    assert error(1.0)(near) < 3 * error(0.0)(near)
    assert error(1.0)(apart) > 10 * error(0.0)(apart)


def test_errors_are_as_many_times_larger_as_the_covariance_foretells_too_little() -> None:
    computed = [0, 3, 6, 9, 11]
    assert error(1.0, pace=2 * EVEN)(computed) == pytest.approx(4 * error(1.0)(computed))
