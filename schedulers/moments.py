"""Moments: when a feature was computed, and the axes on which distances between moments are measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Axis = Literal["angle", "sigma", "tick"]
"""What distances between moments are measured in.

"angle": atan2(noise, signal). The velocity of a denoiser moves over it at an even pace, at whatever noise levels the noise
scheduler stands. "sigma": the noise level on the noise scheduler's own axis. "tick": the number of model evaluations.
"""


NOISE_ENDS = 0.01
"""Radians from pure noise within which a sample counts as such. Guidance passes come nearer to each other soon after it."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When a feature was computed or is predicted.

    Attributes:
        tick: its number.
        sigma: its noise level on the noise scheduler's own axis; None where unknown.
        angle: atan2(noise, signal); None where unknown.
        scale: the factor of the velocity in what the denoiser returns there.
        turned: the angle of pure noise less this angle; None where unknown.
        is_flow: signal and noise of the sample sum to one, as in flow matching (see `signal_and_noise`).
    """

    tick: int
    sigma: float | None = None
    angle: float | None = None
    scale: float = 1.0
    turned: float | None = None
    is_flow: bool = False

    @property
    def is_pure_noise(self) -> bool:
        """Whether the sample is known to hold hardly anything but noise, as in the first tick of all runs but those that begin later (image-to-image)."""
        return self.turned is not None and abs(self.turned) <= NOISE_ENDS


def signal_and_noise(angle: float, is_flow: bool) -> tuple[float, float]:
    """How much signal and how much noise a sample holds, by its angle: in flow matching they sum to one, else their squares do."""
    signal, noise = math.cos(angle), math.sin(angle)
    both = signal + noise if is_flow else 1.0
    return signal / both, noise / both


def angles_of(moments: Sequence[Moment]) -> tuple[float, ...] | None:
    """atan2(noise, signal) of ticks in radians; None where one is unknown, or there are no ticks."""
    angles = [moment.angle for moment in moments if moment.angle is not None]
    return tuple(angles) if 0 < len(angles) == len(moments) else None


def positions(points: Sequence[Moment], target: Moment, axis: Axis) -> tuple[list[float], float]:
    """Coordinates of the points and of the target on an axis.

    Where an angle is unknown they are noise levels. They are ticks if one of these is unknown too, or if two points have
    the same one.
    """
    axes = {"angle": ("angle", "sigma"), "sigma": ("sigma",), "tick": ()}[axis]
    for name in axes:
        at = [getattr(point, name) for point in (*points, target)]
        if None not in at:
            *known, x = at
            if len(set(known)) == len(points):
                return known, x
            break
    return [float(point.tick) for point in points], float(target.tick)
