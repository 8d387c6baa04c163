"""Processes: what is known of a trajectory before it is run, as covariances of the denoiser's velocities at a run's ticks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from diffcache.schedulers.moments import Moment, angles_of
from diffcache.trajectory.kernel import Array, Kernel
from diffcache.trajectory.response import Response

MODELLED = "noise - clean"
"""What covariances and responses are of. Schedules and journals say so: older ones of diffusion models were of another velocity."""


@dataclass(frozen=True)
class Process:
    """The velocities of one run as a Gaussian process over its ticks, each element a draw of its own.

    Attributes:
        covariance: E<F_i, F_j> per element, up to a common factor, [ticks, ticks].
        positions: of the ticks, on an axis over which velocities change at an even pace, [ticks].
    """

    covariance: Array
    positions: Array

    def believed(self, roughness: float) -> Array:
        """The covariance, plus that of a random walk that begins at the first tick: [ticks, ticks].

        The rougher, the closer is prediction to holding the newest output, and interpolation to a straight line.

        Args:
            roughness: variance of the random walk over the whole run, as a fraction of the outputs' mean square.
        """
        length = max(float(np.ptp(self.positions)), np.finfo(float).tiny)
        walked = np.abs(self.positions - self.positions[0]) / length
        scale = roughness * self.covariance.diagonal().mean()
        believed: Array = self.covariance + scale * (1 + np.minimum.outer(walked, walked))
        return believed


def prior_process(kernel: Kernel, moments: Sequence[Moment]) -> Process:
    """What velocities of many denoisers have in common.

    Args:
        kernel: the universal one.
        moments: of a run's ticks.
    """
    positions = positions_of(kernel, moments)
    distance = np.abs(np.subtract.outer(positions, positions))
    scales = np.array([moment.scale for moment in moments])
    noise = kernel.floor + kernel.output_noise**2 * np.maximum(scales**-2.0 - 1, 0)
    return Process(kernel.correlation(distance) + np.diag(noise), positions)


def with_second_calls(
    process: Process, moments: Sequence[Moment], influence: Sequence[Sequence[float]], response: Response
) -> Process:
    """A process of a run in which the denoiser may be called twice in a row at one noise level, as Heun's method calls it.

    The second call gets another sample. No other tick can predict what the denoiser, by its response, makes of the difference.

    Args:
        process: by noise levels alone.
        moments: of the ticks.
        influence: of each tick's velocity on the sample at each tick, [ticks or more, ticks].
        response: of the denoiser.
    """
    second = [
        i
        for i in range(1, len(moments))
        if moments[i].angle is not None and moments[i].angle == moments[i - 1].angle
    ]
    if not second:
        return process
    moved = np.array([np.subtract(influence[i], influence[i - 1]) for i in second])
    size = ((moved @ process.covariance) * moved).sum(axis=1)
    covariance = process.covariance.copy()
    covariance[second, second] += (response.factors[:, second] ** 2).sum(axis=0) * size
    return replace(process, covariance=covariance)


def positions_of(kernel: Kernel, moments: Sequence[Moment]) -> Array:
    """Of ticks, on the kernel's axis; where an angle is unknown, as in a flow from noise to data with steps of equal length.

    Where nothing tells which angle is that of pure noise, the run is taken to begin with it.
    """
    known = angles_of(moments)
    if known is None:
        noise = 1 - np.arange(len(moments)) / len(moments)
        even = np.arctan2(noise, 1 - noise)
        return kernel.position(even, even[0] - even)
    angles, turned = np.array(known), np.array([moment.turned for moment in moments], dtype=float)
    return kernel.position(angles, np.where(np.isnan(turned), angles.max() - angles, turned))
