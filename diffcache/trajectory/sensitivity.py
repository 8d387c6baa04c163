"""How much the result of a run changes with an error of its sample, by the noise level at which the error is made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffcache.schedulers.moments import Moment
from diffcache.trajectory.kernel import Array


@dataclass(frozen=True)
class Sensitivity:
    """Error of the result over an error of the sample, both root mean square.

    What is drawn is decided early: there a small error grows. Late errors shrink, since the denoiser takes a part of
    them for noise. Guidance makes early errors grow more. Between the angles that are given logarithms are interpolated.

    Attributes:
        angles: atan2(noise, signal) in radians, rising.
        factors: the sensitivity at each of them without guidance.
        exponents: of the scale of guidance, by which that is multiplied, at each angle.
    """

    angles: tuple[float, ...]
    factors: tuple[float, ...]
    exponents: tuple[float, ...]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Sensitivity":
        """The sensitivity with these attributes."""
        return cls(tuple(data["angles"]), tuple(data["factors"]), tuple(data["exponents"]))

    def at(self, moments: Sequence[Moment], guidance: float) -> Array:
        """At each tick of a run, [ticks]; 1 where an angle is unknown.

        Args:
            moments: of the ticks.
            guidance: its scale; 1 for none.
        """
        angles = [moment.angle for moment in moments]
        if None in angles:
            return np.ones(len(moments))
        logs = np.log(self.factors) + np.log(guidance) * np.array(self.exponents)
        found: Array = np.exp(np.interp(np.array(angles, dtype=float), self.angles, logs))
        return found
