"""The response of a denoiser: how its velocity changes with its sample."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffcache.schedulers.moments import Moment, angles_of, signal_and_noise
from diffcache.trajectory.kernel import Array

PARTS = 2
"""The mean response and its spread."""


@dataclass(frozen=True)
class Response:
    """How the error v of a denoiser's velocity follows from the error x of the sample that it is given.

    In a run, v is `mean` * x, and beside it a part of the size `spread` * |x| that points elsewhere: neither along x nor along what
    other ticks have answered. The first part is followed from tick to tick: with a mean response R an error is multiplied by 1 - h R over a step
    of size h, so it dies away, or grows where R < 0 or h R > 2. The second is new at each computed tick, as if drawn at random. Guidance makes both large.

    Attributes:
        factors: the mean and the spread at each tick, [2, ticks].
        deviation: how far the mean may be off at each tick, a standard deviation, [ticks]. It is off in the same direction at all ticks, as
            denoisers differ. None: it was measured.
    """

    factors: Array
    deviation: Array | None = None

    @property
    def mean(self) -> Array:
        """<v, x> / <x, x> at each tick."""
        found: Array = self.factors[0]
        return found

    @property
    def spread(self) -> Array:
        """What is left of v, root mean square over that of x, at each tick."""
        found: Array = self.factors[1]
        return found

    @classmethod
    def measured(cls, products: Array) -> "Response":
        """From sums of products <v, x>, <v, v> and <x, x> of a run's errors, [ticks, 3].

        Zeros at ticks that show nothing; the response is interpolated there, and 0 where none shows anything.
        """
        ticks = np.flatnonzero(products[:, 2] > 0)
        if not len(ticks):
            return cls(np.zeros((PARTS, len(products))))
        vx, vv, xx = products[ticks].T
        mean = vx / xx
        spread = np.sqrt(np.maximum(vv / xx - mean**2, 0))
        every = np.arange(len(products))
        return cls(np.stack([np.interp(every, ticks, part) for part in (mean, spread)]))


@dataclass(frozen=True)
class UniversalResponse:
    """What denoisers have in common, as flows have it (see `of_flow`).

    Guidance multiplies differences of outputs, so responses grow with its strength.

    Attributes:
        angles: atan2(noise, signal) in radians, rising.
        factors: without guidance, mean and spread at each angle, [2][angles].
        slopes: what a strength of guidance that is larger by one adds to them (see `Guidance`).
        deviations: of the mean between denoisers, standard deviations at each angle.
    """

    angles: tuple[float, ...]
    factors: tuple[tuple[float, ...], ...]
    slopes: tuple[tuple[float, ...], ...]
    deviations: tuple[float, ...]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "UniversalResponse":
        """The one with these attributes."""
        factors, slopes = (tuple(map(tuple, data[name])) for name in ("factors", "slopes"))
        return cls(tuple(data["angles"]), factors, slopes, tuple(data["deviations"]))

    def at(self, moments: Sequence[Moment], strength: float) -> Response:
        """Of the run's own velocities at each tick; the mean over all angles where an angle is unknown.

        Args:
            moments: of the ticks.
            strength: of guidance; 1 for none.
        """
        mean, spread = np.array(self.factors) + (strength - 1) * np.array(self.slopes)
        parts = np.stack([mean, np.maximum(spread, 0), self.deviations])
        angles = angles_of(moments)
        if angles is None:
            found = np.repeat(parts.mean(axis=1, keepdims=True), len(moments), axis=1)
        else:
            found = np.stack([np.interp(angles, self.angles, part) for part in parts]) / over_flow(moments)
        return Response(found[:PARTS], found[PARTS])


def of_flow(response: Response, moments: Sequence[Moment]) -> Response:
    """A response as it would be in flow matching, so that diffusion models can be compared with flows."""
    return Response(response.factors * over_flow(moments))


def over_flow(moments: Sequence[Moment]) -> Array:
    """How many times as large a sample is as in flow matching, [ticks]. The velocity is the same, so a response to it is so many times as small."""
    return np.array([sum(signal_and_noise(moment.angle or 0.0, moment.is_flow)) for moment in moments])
