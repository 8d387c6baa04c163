"""The response of a denoiser: how its velocity changes with its sample."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffcache.schedulers.moments import Moment, angles_of
from diffcache.trajectory.kernel import Array

SHARES = np.array([0.25, 0.5, 0.25])
"""Of the squared error: the stiff part, the usual one, and the one that lasts."""

STIFF = np.sqrt(2.0)
"""How many standard deviations above the mean the stiff part's response lies: a node of the quadrature with these shares."""


@dataclass(frozen=True)
class Response:
    """The error of the velocity over that of the sample, for three parts of an error, each followed separately.

    With a response R an error is multiplied by 1 - h R over a step of size h: it dies away, or grows where R < 0 or h R > 2.
    Guidance makes R large, and then flows are stiff: extrapolation lowers the bound on h R. New errors meet a mean response
    with some spread. Errors that meet a large response die away soon. So what is left of old errors meets another response, which is measured separately.

    Attributes:
        factors: R of each part at each tick, [3, ticks].
    """

    factors: Array

    @classmethod
    def measured(cls, new: Array, old: Array) -> "Response":
        """From sums of products <v, x>, <v, v> and <x, x> of errors x of the sample and v of the velocity, [ticks, 3].

        Args:
            new: of errors that have just been made. Zeros at ticks that know of none; factors are interpolated there.
            old: of all of a tick's error, likewise.
        """
        mean, spread = _answers(new)
        lasting, its_spread = _answers(old)
        return cls(np.stack([mean + STIFF * spread, mean, lasting - its_spread / STIFF]))


def _answers(products: Array) -> tuple[Array, Array]:
    """The mean response and its spread, both [ticks]; 0 where nothing is known of any tick."""
    ticks = np.flatnonzero(products[:, 2] > 0)
    if not len(ticks):
        return np.zeros(len(products)), np.zeros(len(products))
    vx, vv, xx = products[ticks].T
    mean = vx / xx
    spread = np.sqrt(np.maximum(vv / xx - mean**2, 0))
    every = np.arange(len(products))
    return np.interp(every, ticks, mean), np.interp(every, ticks, spread)


@dataclass(frozen=True)
class UniversalResponse:
    """What denoisers have in common, as diffusion models have it (see `normalised`).

    Guidance multiplies differences of outputs, so responses are linear in its scale.

    Attributes:
        angles: atan2(noise, signal) in radians, rising.
        factors: without guidance, of each part at each angle, [3][angles].
        slopes: what a scale of guidance that is larger by one adds to them.
    """

    angles: tuple[float, ...]
    factors: tuple[tuple[float, ...], ...]
    slopes: tuple[tuple[float, ...], ...]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "UniversalResponse":
        """The one with these attributes."""
        return cls(
            tuple(data["angles"]), tuple(map(tuple, data["factors"])), tuple(map(tuple, data["slopes"]))
        )

    def at(self, moments: Sequence[Moment], guidance: float) -> Response:
        """Of the run's own velocities at each tick; the mean over all angles where an angle is unknown.

        Args:
            moments: of the ticks.
            guidance: its scale; 1 for none.
        """
        parts = np.array(self.factors) + (guidance - 1) * np.array(self.slopes)
        angles = angles_of(moments)
        if angles is None:
            return Response(np.repeat(parts.mean(axis=1, keepdims=True), len(moments), axis=1))
        at_angles = np.stack([np.interp(angles, self.angles, part) for part in parts])
        offset, factor = _of_velocities(moments)
        return Response(offset + factor * at_angles)


def normalised(response: Response, moments: Sequence[Moment]) -> Response:
    """A response as it would be in a diffusion model, whose samples have variance one: so flows can be compared with it."""
    offset, factor = _of_velocities(moments)
    return Response((response.factors - offset) / factor)


def _of_velocities(moments: Sequence[Moment]) -> tuple[Array, Array]:
    """The response of flow matching is an offset plus a factor times that of a diffusion model, both [ticks]; 0 and 1 in diffusion models.

    Let x = cos(a) clean + sin(a) noise be the sample of variance one at the angle a, and v = cos(a) noise - sin(a) clean its
    velocity. A flow has x / (cos(a) + sin(a)) and noise - clean = (cos(a) + sin(a)) v - (cos(a) - sin(a)) x. Derivatives follow.
    """
    doubled = 2 * np.array([moment.angle or 0.0 for moment in moments])
    is_flow = np.array([moment.is_flow for moment in moments])
    return np.where(is_flow, -np.cos(doubled), 0.0), np.where(is_flow, 1 + np.sin(doubled), 1.0)
