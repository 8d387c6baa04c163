"""Transfer: exact at the same noise levels, a covariance at all, and nearer to the truth than the prior on processes that are known."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from diffcache.schedulers.moments import Moment, angles_of
from diffcache.trajectory.gaussian import conditional_weights
from diffcache.trajectory.kernel import RIGHT_ANGLE, Array
from diffcache.trajectory.prior import universal
from diffcache.trajectory.process import prior_process
from diffcache.trajectory.transfer import (
    are_same,
    covariance_at,
    pure_noise_of,
    response_at,
    smoothed,
)

KERNEL = universal().kernel.at(3.0)
LENGTHS = (12, 20, 50, 77)
MEASURED_IN = 28


def flow(ticks: int, shift: float = 1.0) -> list[Moment]:
    """The ticks of a flow with a shift of its noise levels."""
    sigmas = np.linspace(1, 0, ticks, endpoint=False)
    sigmas = shift * sigmas / (1 + (shift - 1) * sigmas)
    return [Moment(i, None, float(np.arctan2(sigma, 1 - sigma))) for i, sigma in enumerate(sigmas)]


def predicting_noise(ticks: int) -> list[Moment]:
    """Ticks whose velocities are computed from predicted noises."""
    angles = np.linspace(RIGHT_ANGLE - 0.01, 0.02, ticks)
    return [Moment(i, None, float(angle), float(np.cos(angle))) for i, angle in enumerate(angles)]


def twice(moments: Sequence[Moment]) -> list[Moment]:
    """Each noise level twice, as in a solver of second order."""
    return [Moment(i, None, moments[i // 2].angle) for i in range(2 * len(moments))]


def angles(moments: Sequence[Moment]) -> tuple[float, ...]:
    found = angles_of(moments)
    assert found is not None
    return found


def other(moments: Sequence[Moment]) -> Array:
    """The covariance of a pipeline unlike others: velocities grow towards the data, and change at a pace that is its own."""
    kernel = replace(KERNEL, data=3 * KERNEL.data, noise=0.5 * KERNEL.noise, constant=0.7, floor=1e-6)
    size = 1 + np.cos(angles(moments))
    covariance: Array = np.outer(size, size) * prior_process(kernel, moments).covariance
    return covariance


RUNS = {
    **{f"{ticks} ticks": flow(ticks) for ticks in LENGTHS},
    "shifted": flow(MEASURED_IN, 3.0),
    "of noises": predicting_noise(33),
    "twice": twice(flow(10)),
}


@pytest.mark.parametrize("run", [*RUNS, "measured"])
def test_at_the_noise_levels_of_the_measurement_nothing_changes(run: str) -> None:
    moments = RUNS.get(run, flow(MEASURED_IN))
    measured, response = other(moments), np.random.default_rng(0).normal(size=(2, len(moments)))
    nearly = [replace(moment, angle=(moment.angle or 0) + 1e-8) for moment in moments]
    for at in (moments, nearly):
        np.testing.assert_array_equal(covariance_at(KERNEL, measured, angles(moments), at), measured)
        np.testing.assert_array_equal(response_at(response, angles(moments), at), response)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("of", ["a full rank", "one sample"])
def test_it_is_symmetric_and_positive_semidefinite(run: str, of: str) -> None:
    old = flow(MEASURED_IN)
    sample = np.random.default_rng(1).normal(size=MEASURED_IN)
    measured = other(old) if of == "a full rank" else np.outer(sample, sample)
    found = covariance_at(KERNEL, measured, angles(old), RUNS[run])
    assert found.shape == (len(RUNS[run]),) * 2
    np.testing.assert_array_equal(found, found.T)
    assert np.linalg.eigvalsh(found).min() > -1e-9 * found.diagonal().max()


def test_noise_levels_that_come_twice_are_carried_too() -> None:
    old = twice(flow(10))
    found = covariance_at(KERNEL, other(old), angles(old), flow(20))
    assert np.isfinite(found).all()
    assert off(found, other(flow(20))) < 0.1


@pytest.mark.parametrize("old", [flow(MEASURED_IN), predicting_noise(MEASURED_IN)], ids=["flow", "noises"])
@pytest.mark.parametrize("ticks", LENGTHS)
@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_a_covariance_that_is_the_prior_stays_the_prior(old: list[Moment], ticks: int, scale: float) -> None:
    """What computed ticks foretell and what they leave open add up, in the units of what was measured."""
    new = flow(ticks) if old[0].scale == 1 else predicting_noise(ticks)
    found = covariance_at(KERNEL, scale * prior_process(KERNEL, old).covariance, angles(old), new)
    np.testing.assert_allclose(found, scale * prior_process(KERNEL, new).covariance, rtol=2e-2)


@pytest.mark.parametrize(("before", "after"), [(0.5, 0.5), (0.5, 0.25), (0.25, 0.5), (0.0, 0.5), (0.5, 0.0)])
def test_runs_that_begin_with_a_picture_are_carried_too(before: float, after: float) -> None:
    """The same noise levels are at the same place, however far from pure noise a run begins."""

    def begun(ticks: int, later: float) -> list[Moment]:
        run = flow(ticks)[int(later * ticks) :]
        return [replace(moment, turned=RIGHT_ANGLE - (moment.angle or 0)) for moment in run]

    old, new = begun(2 * MEASURED_IN, before), begun(40, after)
    measured = prior_process(KERNEL, old).covariance
    found = covariance_at(KERNEL, measured, angles(old), new, pure_noise_of(old))
    np.testing.assert_allclose(found, prior_process(KERNEL, new).covariance, atol=2e-2)
    if before > 0 == after:  # wrongly taken to begin with pure noise
        wrong = covariance_at(KERNEL, measured, angles(old), new)
        assert abs(wrong - found).max() > 5e-2


@pytest.mark.parametrize("run", [f"{ticks} ticks" for ticks in LENGTHS] + ["shifted"])
def test_it_is_nearer_to_the_truth_than_the_prior(run: str) -> None:
    old, new = flow(MEASURED_IN), RUNS[run]
    truth, prior = other(new), prior_process(KERNEL, new).covariance
    found = covariance_at(KERNEL, other(old), angles(old), new)
    assert off(found, truth) < 0.3 * off(prior, truth)
    assert divergence(found, truth) < 0.5 * divergence(prior, truth)


def test_what_is_left_open_is_as_large_as_the_measured_surprises_of_its_noise_level() -> None:
    """Velocities that are rougher than the prior near noise are so between the measured ticks, and there only."""
    rough = replace(KERNEL, fine=0.9, finer=20.0)
    old, new = flow(MEASURED_IN), flow(2 * MEASURED_IN)
    noisy = np.array(angles(old)) > 0.8
    smooth, jagged = (prior_process(kernel, old).covariance for kernel in (KERNEL, rough))
    measured = smooth + np.where(np.outer(noisy, noisy), jagged, 0)
    found = covariance_at(KERNEL, measured, angles(old), new)
    unlike = surprises(found) / surprises(prior_process(KERNEL, new).covariance)
    early, late = np.array(angles(new)) > 0.9, np.array(angles(new)) < 0.4
    assert unlike[early].min() > 3
    assert unlike[late].max() < 1.5


def test_responses_are_interpolated_over_the_angle_and_end_as_they_are() -> None:
    old = [Moment(0, None, 1.5), Moment(1, None, 1.0), Moment(2, None, 0.2)]
    new = [Moment(i, None, angle) for i, angle in enumerate((1.55, 1.25, 0.6, 0.1))]
    found = response_at(np.array([[30.0, 20.0, 4.0], [3.0, 2.0, 0.4]]), angles(old), new)
    np.testing.assert_allclose(found, [[30.0, 25.0, 12.0, 4.0], [3.0, 2.5, 1.2, 0.4]])


def test_angles_are_known_of_all_ticks_or_not_at_all() -> None:
    assert angles_of([Moment(0, None, 1.5), Moment(1, None, 0.5)]) == (1.5, 0.5)
    assert angles_of([Moment(0, None, 1.5), Moment(1)]) is None
    assert angles_of([]) is None
    assert are_same((1.5, 0.5), (1.5, 0.5 + 1e-8))
    assert not are_same((1.5, 0.5), (1.5, 0.501))
    assert not are_same((1.5, 0.5), (1.5,))


def off(found: Array, truth: Array) -> float:
    """How far correlations are off, root mean square."""
    return float(np.sqrt(np.mean((correlation(found) - correlation(truth)) ** 2)))


def divergence(found: Array, truth: Array) -> float:
    """Kullback and Leibler's, of Gaussians with these correlations."""
    ratio = np.linalg.solve(correlation(found), correlation(truth))
    return float(np.trace(ratio) - len(ratio) - np.linalg.slogdet(ratio)[1]) / 2


def correlation(covariance: Array) -> Array:
    size = np.sqrt(covariance.diagonal())
    found: Array = covariance / np.outer(size, size)
    return found


def surprises(covariance: Array) -> Array:
    """The variance of each tick that all others leave open."""
    found: Array = 1 / np.linalg.inv(covariance).diagonal()
    return found


@pytest.mark.parametrize("run", RUNS)
def test_smoothing_by_one_changes_nothing_and_by_more_gives_a_covariance(run: str) -> None:
    moments = RUNS[run]
    measured = other(moments)
    np.testing.assert_array_equal(smoothed(KERNEL, measured, moments, 1), measured)
    for stride in (2, 3, len(moments), len(moments) + 1):
        found = smoothed(KERNEL, measured, moments, stride)
        np.testing.assert_array_equal(found, found.T)
        assert np.linalg.eigvalsh(found).min() > -1e-9 * found.diagonal().max()


@pytest.mark.parametrize("stride", [2, 3])
def test_a_covariance_of_few_samples_predicts_better_when_it_is_smoothed(stride: int) -> None:
    moments, ratios = flow(MEASURED_IN), []
    truth = other(moments)
    for seed in range(6):
        draws = np.random.default_rng(seed).multivariate_normal(np.zeros(MEASURED_IN), truth, size=8)
        measured = draws.T @ draws / len(draws)
        better = smoothed(KERNEL, measured, moments, stride)
        ratios.append(missed(better, truth) / missed(measured, truth))
    assert np.median(ratios) < 0.85


def missed(believed: Array, truth: Array) -> float:
    """The root mean square error of predicting each tick from the four before it, by the truth."""
    errors = []
    for tick in range(4, len(truth)):
        past = list(range(tick - 4, tick))
        signed = np.append(conditional_weights(believed, past, [tick], 0.0)[:, 0], -1.0)
        errors.append(signed @ truth[np.ix_([*past, tick], [*past, tick])] @ signed)
    return float(np.sqrt(np.mean(errors)))
