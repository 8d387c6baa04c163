"""What is known of all denoisers as a factor that changes with the noise level and with how strong guidance is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffcache.schedulers.moments import Moment, angles_of
from diffcache.trajectory.kernel import Array


@dataclass(frozen=True)
class ByNoiseLevel:
    """A positive factor. Between the angles that are given logarithms are interpolated.

    Attributes:
        angles: atan2(noise, signal) in radians, rising.
        factors: at each of them, without guidance.
        exponents: where guidance has the strength a, a factor is multiplied by a ** exponent; at each angle.
    """

    angles: tuple[float, ...]
    factors: tuple[float, ...]
    exponents: tuple[float, ...]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ByNoiseLevel":
        """The one with these attributes."""
        return cls(tuple(data["angles"]), tuple(data["factors"]), tuple(data["exponents"]))

    def at(self, moments: Sequence[Moment], strength: float) -> Array:
        """At each tick of a run, [ticks]; 1 where an angle is unknown.

        Args:
            moments: of the ticks.
            strength: of guidance (see `Guidance`); 1 for none.
        """
        angles = angles_of(moments)
        if angles is None:
            return np.ones(len(moments))
        logs = np.log(self.factors) + np.log(strength) * np.array(self.exponents)
        found: Array = np.exp(np.interp(angles, self.angles, logs))
        return found
