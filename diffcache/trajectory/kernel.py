"""The covariance of a denoiser's velocities at two noise levels, with a few hyperparameters."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RIGHT_ANGLE = np.pi / 2


@dataclass(frozen=True)
class Kernel:
    """A Matérn covariance (Rasmussen and Williams 2006, section 4.2) on an axis over which velocities change at an even pace.

    The axis is a function of the angle theta = atan2(noise, signal), which falls from about pi / 2 (noise) to 0 (data):

        u(theta) = data * log(theta + data_end) - noise * log(theta_0 - theta + noise_end)

    theta_0 is the angle of pure noise, with which the noise scheduler begins: pi / 2 in a flow, 1.50 with Stable Diffusion's noise
    levels. Whatever it is, velocities change fast in the first steps after it. Far from its ends u is the logarithm of the
    signal-to-noise ratio, stretched differently on both sides. The correlation of two velocities u apart is

        constant + (1 - constant) * ((1 - fine) * m(u) + fine * m(finer * u)),  m(u) = (1 + s + s^2 / 3) exp(-s),  s = sqrt(5) u

    Attributes:
        data, noise: how much the axis is stretched near data and near noise.
        data_end, noise_end: angles that keep the logarithms finite.
        constant, fine, finer: see the formula.
        floor: part of the variance at a tick that no other tick can predict.
        output_noise: the same for what the denoiser returns, as a standard deviation. It matters where a velocity is
            computed from a predicted noise or sample, which multiplies errors.
    """

    data: float
    noise: float
    data_end: float
    noise_end: float
    constant: float
    fine: float
    finer: float
    floor: float
    output_noise: float

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Kernel":
        """The kernel with these hyperparameters."""
        return cls(**{field.name: float(data[field.name]) for field in fields(cls)})

    def position(self, angles: Array, turned: Array) -> Array:
        """u of angles theta in radians, any shape.

        Args:
            angles: theta.
            turned: theta_0 - theta, of the same shape.
        """
        position: Array = self.data * np.log(angles + self.data_end) - self.noise * np.log(
            turned + self.noise_end
        )
        return position

    def correlation(self, distance: Array) -> Array:
        """Of two velocities so far apart on the axis, any shape."""
        varying = (1 - self.fine) * _matern(distance) + self.fine * _matern(self.finer * distance)
        correlation: Array = self.constant + (1 - self.constant) * varying
        return correlation


@dataclass(frozen=True)
class UniversalKernel:
    """What denoisers have in common. The stronger guidance is, the faster velocities change where there is much noise.

    Attributes:
        plain: the kernel without guidance.
        exponent: where guidance has the strength a (see `Guidance`), `noise` is multiplied by a ** exponent.
    """

    plain: Kernel
    exponent: float

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "UniversalKernel":
        """The one with these attributes."""
        return cls(Kernel.from_dict(data["plain"]), float(data["exponent"]))

    def at(self, strength: float) -> Kernel:
        """The kernel of runs with guidance of this strength; 1 for none."""
        return replace(self.plain, noise=self.plain.noise * strength**self.exponent)


def _matern(distance: Array) -> Array:
    scaled = np.sqrt(5.0) * distance
    result: Array = (1 + scaled + scaled * scaled / 3) * np.exp(-scaled)
    return result
