"""Transfer: what was measured at some noise levels, carried to others, of another run of the same pipeline or of the same run."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from diffcache.schedulers.moments import Moment, angles_of
from diffcache.trajectory.kernel import RIGHT_ANGLE, Array, Kernel
from diffcache.trajectory.process import prior_process

SAME = 1e-6
"""Angles that differ by less, in radians, are the same: noise levels are computed in single precision."""


OWN, UNIVERSAL = "own", "universal"
"""Covariances that reused ticks may be predicted with."""


class Measurement(NamedTuple):
    """Where the covariance of a pipeline was measured, what else was, and what reused ticks are predicted with.

    Attributes:
        angles: atan2(noise, signal) of the ticks in radians, [ticks].
        response: of the denoiser, [2, ticks]; None where only the universal one is known.
        pure_noise: the angle of pure noise there; None: the largest of `angles`.
        amplification: by guidance, as the first tick has shown it there (see `Guidance`); None: it was not measured.
        predicts_with: see `TrajectoryConfig`.
    """

    angles: tuple[float, ...]
    response: Array | None
    pure_noise: float | None = None
    amplification: float | None = None
    predicts_with: str = OWN

    def describe(self) -> dict[str, Any]:
        """All of it, as a schedule holds it."""
        return {
            "angles": list(self.angles),
            "response": None if self.response is None else self.response.tolist(),
            "pure_noise": self.pure_noise,
            "amplification": self.amplification,
            "predicts_with": self.predicts_with,
        }


def are_angles(values: Sequence[float]) -> bool:
    """Whether numbers can be atan2(noise, signal) in radians."""
    return all(0 <= value <= RIGHT_ANGLE + SAME for value in values)


def are_same(angles: Sequence[float], others: Sequence[float]) -> bool:
    """Whether two runs have the same noise levels, by the angles of their ticks in radians."""
    return len(angles) == len(others) and np.allclose(angles, others, rtol=0, atol=SAME)


def pure_noise_of(moments: Sequence[Moment]) -> float | None:
    """The angle of pure noise in a run; None where it is unknown."""
    first = moments[0]
    return None if first.angle is None or first.turned is None else first.angle + first.turned


def covariance_at(
    kernel: Kernel,
    measured: Array,
    angles: Sequence[float],
    moments: Sequence[Moment],
    pure_noise: float | None = None,
) -> Array:
    """The covariance of the velocities of a run, from that of another run.

    The universal process K says how velocities at new ticks n follow from those at old ticks o: by the weights W of its
    conditional mean. It also says how much they leave open. Measured velocities, whose covariance is G, follow from each other
    better or worse than K says. S is one factor for each noise level: the error of prediction over the one that K expects.

        G_nn = W G W^T + S (K_nn - W K_on) S,   W = K_no K_oo^-1

    (Rasmussen and Williams 2006, sections 2.2 and 5.4.2). It is symmetric and positive semidefinite as G is.

    Args:
        kernel: the universal one.
        measured: G, [old, old].
        angles: atan2(noise, signal) of the old ticks in radians, [old].
        moments: of the new ticks; their angles are known.
        pure_noise: its angle in the old run; None: the largest of `angles`.

    Returns:
        G_nn, [new, new]; G itself where the angles are the same.
    """
    new = angles_of(moments)
    assert new is not None
    # The run's own scales at the old angles: what a denoiser returns does not change with the number of steps.
    scales = _interpolated(new, np.array([moment.scale for moment in moments]), angles)
    old = [
        Moment(i, None, angle, scale, None if pure_noise is None else pure_noise - angle)
        for i, (angle, scale) in enumerate(zip(angles, scales, strict=True))
    ]
    return _carried(kernel, measured, old, moments)


def _carried(kernel: Kernel, measured: Array, old: Sequence[Moment], moments: Sequence[Moment]) -> Array:
    """See `covariance_at`; `old` are the ticks that were measured."""
    angles, new = angles_of(old), angles_of(moments)
    assert angles is not None
    assert new is not None
    if are_same(angles, new):
        return measured
    before, after = prior_process(kernel, old), prior_process(kernel, moments)
    towards = kernel.correlation(np.abs(np.subtract.outer(after.positions, before.positions)))
    inverse: Array = np.linalg.inv(before.covariance).astype(np.float64)
    weights = towards @ inverse
    surprise = _interpolated(angles, np.log(_surprise(inverse, measured)), new)
    size = np.exp(surprise / 2)
    left_open = after.covariance - weights @ towards.T
    found = weights @ measured @ weights.T + np.outer(size, size) * left_open
    symmetric: Array = (found + found.T) / 2
    return symmetric


def smoothed(kernel: Kernel, measured: Array, moments: Sequence[Moment], stride: int) -> Array:
    """A measured covariance without what its few samples happen to have in common at neighbouring ticks.

    Args:
        kernel: the universal one.
        measured: of the run's own ticks, [ticks, ticks].
        moments: of these; their angles are known.
        stride: the covariance is carried from every so many ticks to all of them, once for each first tick, and the results are averaged.
            1 changes nothing.

    Returns:
        [ticks, ticks]
    """
    parts = (slice(start, None, stride) for start in range(min(stride, len(moments))))
    found: Array = np.mean(
        [_carried(kernel, measured[part, part], moments[part], moments) for part in parts], axis=0
    )
    return found


def response_at(measured: Array, angles: Sequence[float], moments: Sequence[Moment]) -> Array:
    """The response of the denoiser in a run, from that in another run.

    It depends on the noise level, and is interpolated over the angle.

    Args:
        measured: mean and spread (see `Response`), [2, old].
        angles: atan2(noise, signal) of the old ticks in radians, [old].
        moments: of the new ticks; their angles are known.

    Returns:
        [2, new], beyond the old ticks as at the nearest one; `measured` itself where the angles are the same.
    """
    new = angles_of(moments)
    assert new is not None
    if are_same(angles, new):
        return measured
    return np.stack([_interpolated(angles, part, new) for part in measured])


def _surprise(inverse: Array, measured: Array) -> Array:
    """The squared error of predicting each tick from all others, measured over what the process says, [ticks].

    Args:
        inverse: of the process's covariance, [ticks, ticks].
        measured: the covariance, [ticks, ticks].
    """
    found: Array = np.einsum("ij,jk,ki->i", inverse, measured, inverse) / inverse.diagonal()
    return np.maximum(found, np.finfo(float).tiny)


def _interpolated(angles: Sequence[float], values: Array, wanted: Sequence[float]) -> Array:
    """Values at some angles, interpolated at others; angles may fall."""
    order = np.argsort(angles)
    found: Array = np.interp(wanted, np.array(angles)[order], values[order])
    return found
