"""The expected error of a result, against runs that are followed tick by tick."""

import numpy as np
import pytest

from diffcache.trajectory.error_model import (
    STIFFER,
    WINDOW,
    Caution,
    ErrorModel,
    with_each,
)
from diffcache.trajectory.gaussian import BETWEEN, conditional_weights
from diffcache.trajectory.process import Process
from diffcache.trajectory.response import Response

TICKS = 12
POSITIONS = np.linspace(0, 2, TICKS)
ON_RESULT = -np.linspace(0.06, 0.12, TICKS)
LASTING = np.tril(np.broadcast_to(ON_RESULT, (TICKS + 1, TICKS)), -1)
"""The influence in a one-step method: what a velocity adds to the sample stays."""
TAKEN_BACK = LASTING + np.eye(TICKS + 1, TICKS, k=-1) * np.append(0.8 * ON_RESULT[:-1], 0)
"""In a multistep method more is added at first."""
STAGES = np.diag(np.tile([0.0, 2.0], TICKS // 2))
STAGED = LASTING @ STAGES + np.eye(TICKS + 1, TICKS, k=-1) * np.tile([-0.09, 0.0], TICKS // 2)
"""In a singlestep method every other velocity changes only the sample at the next tick."""
EVEN = np.ones(TICKS)
ANSWERS = np.stack([np.linspace(4, -1, TICKS), np.linspace(6, 2, TICKS)])
"""Mean and spread."""
DEVIATION = np.linspace(1, 3, TICKS)
"""Of the mean."""
PROCESS = Process(np.exp(-((POSITIONS[:, None] - POSITIONS[None, :]) ** 2)) + 1e-3 * np.eye(TICKS), POSITIONS)
CAUTION = Caution(1e-3, 1e-2)
RATIO = 1.3
"""So small that some ticks are not corrected."""


def error(
    answering: float = 0.0,
    ratio: float = RATIO,
    pace: np.ndarray = EVEN,
    influence: np.ndarray = LASTING,
    handovers: tuple[int, ...] = (),
    caution: Caution = CAUTION,
    deviation: np.ndarray | None = None,
) -> ErrorModel:
    response = Response(answering * ANSWERS, deviation)
    return ErrorModel(PROCESS, influence, pace, response, ratio, caution, handovers=handovers)


@pytest.mark.parametrize("handovers", [(), (6,)])
@pytest.mark.parametrize("computed", [[0, 3, 6, 9, 11], [0, 6], range(TICKS)])
def test_with_several_predictions_a_plan_has_the_errors_that_it_has_with_each(
    computed: list[int], handovers: tuple[int, ...]
) -> None:
    cautions = (CAUTION, Caution(1e-5, 0.0), Caution(1e-3, 1e4))
    errors = [error(1.0, handovers=handovers, caution=caution) for caution in cautions]
    assert with_each(errors, computed) == pytest.approx([one(computed) for one in errors], rel=1e-9)


def followed(
    computed: list[int],
    answers: np.ndarray,
    ratio: float,
    influence: np.ndarray,
    handovers: tuple[int, ...] = (),
    truly: Process = PROCESS,
) -> float:
    """Root mean square error of the result of runs through one tick after the other. All is linear in the true outputs and in random answers.

    True outputs have the covariance of `truly`, and are predicted by that of `PROCESS`. Random answers have variance 1.
    """
    believed, on_result = PROCESS.believed(CAUTION.roughness), influence[-1]
    covariance = np.block(
        [[truly.covariance, np.zeros((TICKS, TICKS))], [np.zeros((TICKS, TICKS)), np.eye(TICKS)]]
    )
    truth, drawn = np.eye(2 * TICKS)[:TICKS], np.eye(2 * TICKS)[TICKS:]
    got, known, outputs, waiting = np.zeros((TICKS, 2 * TICKS)), [], {}, {}
    for tick in range(TICKS):
        if tick in handovers:  # another denoiser knows nothing of what was before
            known, waiting = [], {}
        past = known[-WINDOW:]
        if tick not in computed:
            weights = conditional_weights(believed, past, [tick], CAUTION.noise)[:, 0]
            waiting[tick] = sum(w * outputs[j] for w, j in zip(weights, past, strict=True))
            got[tick] = waiting[tick] - truth[tick]
            continue
        mean, spread = answers[:, tick]
        off = influence[tick] @ got
        got[tick] = mean * off + spread * np.sqrt(off @ covariance @ off) * drawn[tick]
        outputs[tick] = truth[tick] + got[tick]
        for reused, used in waiting.items():
            if 0 < abs(on_result[tick]) >= abs(on_result[reused]) / max(ratio, 1e-9):
                weights = conditional_weights(PROCESS.covariance, [*past, tick], [reused], BETWEEN)[:, 0]
                found = sum(w * outputs[j] for w, j in zip(weights, [*past, tick], strict=True))
                got[tick] += on_result[reused] / on_result[tick] * (found - used)
        waiting = {}
        known.append(tick)
    off = on_result @ got
    return float(np.sqrt(off @ covariance @ off))


@pytest.mark.parametrize("computed", [[0, 3, 6, 9, 11], [0, 2, 3, 7, 8, 10], [0, 6], [0]])
@pytest.mark.parametrize("answering", [0.0, 1.0])
@pytest.mark.parametrize("ratio", [0.0, RATIO, 3.0])
@pytest.mark.parametrize("influence", [LASTING, TAKEN_BACK, STAGED])
def test_it_is_what_runs_have_in_the_mean(
    computed: list[int], answering: float, ratio: float, influence: np.ndarray
) -> None:
    expected = followed(computed, answering * ANSWERS, ratio, influence)
    assert error(answering, ratio, influence=influence)(computed) == pytest.approx(expected, rel=1e-9)


def doubted() -> list[np.ndarray]:
    """Mean and spread of each response that is possible."""
    mean, spread = ANSWERS
    return [np.stack([mean - DEVIATION, spread]), np.stack([mean + DEVIATION, STIFFER * spread])]


def test_it_is_the_mean_over_what_the_response_may_be() -> None:
    computed = [0, 3, 6, 9, 11]
    errors = [followed(computed, answers, 3.0, LASTING) for answers in doubted()]
    assert error(1.0, 3.0, deviation=DEVIATION)(computed) == pytest.approx(np.mean(errors), rel=1e-9)


@pytest.mark.parametrize(("computed", "handovers"), [([0, 2, 5, 8, 10], (5,)), ([0, 1, 4, 6, 9], (4, 6))])
def test_another_denoiser_is_predicted_from_its_own_outputs(
    computed: list[int], handovers: tuple[int, ...]
) -> None:
    expected = followed(computed, ANSWERS, 3.0, LASTING, handovers)
    found = error(1.0, 3.0, handovers=handovers)(computed)
    assert found == pytest.approx(expected, rel=1e-9)
    assert error(0.0, 3.0, handovers=handovers)(computed) > error(0.0, 3.0)(computed)


def test_predictions_may_be_of_a_process_that_is_not_the_true_one() -> None:
    rough, response, computed = PROCESS.believed(0.3), Response(0 * ANSWERS), [0, 3, 6, 9, 11]
    truly = Process(rough, POSITIONS)
    true = ErrorModel(truly, LASTING, EVEN, response, RATIO, CAUTION)
    found = true.likely(computed, error())
    expected = followed(computed, 0 * ANSWERS, RATIO, LASTING, truly=truly)
    assert found == pytest.approx(expected, rel=1e-9)
    assert found > true.likely(computed)


def test_errors_may_add_up_otherwise_than_plans_are_made_for() -> None:
    computed, real = [0, 3, 6, 9, 11], error(1.0, influence=2 * LASTING)
    made = ErrorModel(PROCESS, LASTING, EVEN, Response(ANSWERS), RATIO, CAUTION, with_clipping=real)
    assert made(computed) == error(1.0)(computed)
    assert made.likely(computed) == real.likely(computed) > 1.5 * error(1.0).likely(computed)


def test_the_likely_error_is_that_of_the_response_as_it_is() -> None:
    computed, found = [0, 3, 6, 9, 11], error(1.0, 3.0, deviation=DEVIATION)
    assert found.likely(computed) == pytest.approx(followed(computed, ANSWERS, 3.0, LASTING), rel=1e-9)
    assert found.likely(computed) != pytest.approx(found(computed), rel=1e-2)
    assert found.likely(list(range(TICKS))) == 0


def test_a_full_run_has_none() -> None:
    assert error(4.0)(list(range(TICKS))) == 0


def test_correcting_helps() -> None:
    computed = [0, 3, 6, 9, 11]
    assert error(ratio=3.0)(computed) < error(ratio=0.0)(computed)


def test_a_stiff_denoiser_makes_long_gaps_unstable() -> None:
    apart, near = [0, 4, 8, 11], [0, 2, 4, 6, 8, 10, 11]
    stiff, blind = (
        ErrorModel(PROCESS, LASTING, EVEN, Response(np.outer([mean, 0], EVEN)), RATIO, CAUTION)
        for mean in (8, 0)
    )
    assert stiff(near) < 1.7 * blind(near)
    assert stiff(apart) > 3.2 * blind(apart)


def test_errors_are_as_many_times_larger_as_the_covariance_foretells_too_little() -> None:
    computed = [0, 3, 6, 9, 11]
    assert error(1.0, pace=2 * EVEN)(computed) == pytest.approx(2 * error(1.0)(computed))


def test_what_only_the_next_stage_sees_matters_by_the_response() -> None:
    computed = [tick for tick in range(TICKS) if tick % 2 or not tick]
    assert error(0.0, influence=STAGED)(computed) == pytest.approx(0, abs=1e-6)
    assert error(1.0, influence=STAGED)(computed) > 1e-3


def test_no_doubt_makes_the_plain_run_unstable() -> None:
    computed, stiff = [0, 2, 4, 6, 8, 10, 11], np.outer([1 / 0.12, 0], EVEN)
    large, larger = (
        ErrorModel(PROCESS, LASTING, EVEN, Response(stiff, deviation * EVEN), RATIO, CAUTION)
        for deviation in (1e10, 1e14)
    )
    assert large(computed) == pytest.approx(larger(computed), rel=1e-3)
