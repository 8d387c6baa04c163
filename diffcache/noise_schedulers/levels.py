"""Levels: signal and noise at each timestep, and how the denoiser's output there follows from the velocity."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from diffcache.noise_schedulers.quirks import (
    is_flow,
    is_negated,
    prediction_type_of,
    sigmas_of,
    signal_and_noise_of,
    training_times_of,
)

SMALLEST = 1e-3
"""The smallest factor of the velocity, because its inverse multiplies rounding errors. A map with another factor is still exact."""


class Parametrisation(NamedTuple):
    """A denoiser's output at one noise level: output = of_velocity * v + of_input * x.

    x is the denoiser's input, and v = noise - clean the velocity, whatever the denoiser predicts. An error of a predicted noise
    becomes sigma / alpha times as large in the predicted sample; an error of the velocity never grows.
    """

    of_velocity: float = 1.0
    of_input: float = 0.0


VELOCITY = Parametrisation()
"""The output is the velocity itself."""


class Level(NamedTuple):
    """What is known of one timestep.

    Attributes:
        sigma: noise level on the noise scheduler's own axis; None where unknown.
        angle: atan2(noise, signal), from 0 for clean samples to pi / 2 for pure noise; None where unknown.
        time: the timestep as a fraction of the training steps; None where unknown.
        parametrisation: what the denoiser's output is there.
        turned: the angle of pure noise less this angle, at least 0; None where unknown. Pure noise is pi / 2 in flow matching,
            else the largest angle of the list.
        is_flow: flow matching.
    """

    sigma: float | None = None
    angle: float | None = None
    time: float | None = None
    parametrisation: Parametrisation = VELOCITY
    turned: float | None = None
    is_flow: bool = False


UNKNOWN = Level()


def levels_of(noise_scheduler: Any) -> list[Level]:
    """One level for each of a noise scheduler's timesteps. Reads the device.

    Every denoiser is seen as one of flow matching. Let x = alpha * clean + sigma * noise be its input, and v = noise - clean. Then
    the noise is (x + alpha * v) / (alpha + sigma), and the clean sample (x - sigma * v) / (alpha + sigma). A diffusion model has
    alpha^2 + sigma^2 = 1, and its own velocity (Salimans & Ho, arXiv 2202.00512) is alpha * noise - sigma * clean =
    (v + (alpha - sigma) * x) / (alpha + sigma). That one turns with the angle even where noise and clean sample stay the same; v does not.
    """
    timesteps = noise_scheduler.timesteps
    known = sigmas_of(noise_scheduler)
    sigmas: list[float] | list[None] = known or [None] * len(timesteps)
    times: list[float] | list[None] = training_times_of(noise_scheduler) or [None] * len(timesteps)
    mixed = signal_and_noise_of(noise_scheduler, known)
    if mixed is None:
        return [Level(sigma, None, time) for sigma, time in zip(sigmas, times, strict=True)]
    flows = is_flow(noise_scheduler, known)
    prediction, negated = prediction_type_of(noise_scheduler), is_negated(noise_scheduler)
    levels = []
    for sigma, time, (signal, noise) in zip(sigmas, times, mixed, strict=True):
        output = _parametrisation(prediction, signal, noise, flows)
        if negated:
            output = Parametrisation(-output.of_velocity, -output.of_input)
        levels.append(Level(sigma, math.atan2(noise, signal), time, output, is_flow=flows))
    return _turned(levels)


def levels_of_loop(noise_scheduler: Any, sigmas: Iterable[float] | None, first: int = 0) -> list[Level]:
    """The levels of a hand-written loop; empty where neither its noise scheduler nor its noise levels are known.

    Args:
        noise_scheduler: after `set_timesteps`; None where it is not known.
        sigmas: instead of the noise scheduler's. Without it, levels of at most 1 are taken to be those of flow matching.
        first: index of the noise scheduler's timestep at which the loop, and so `sigmas`, begins.
    """
    known = [] if noise_scheduler is None else levels_of(noise_scheduler)
    if sigmas is None:
        return known
    given = [float(sigma) for sigma in sigmas]
    if known:
        theirs = [level._replace(sigma=sigma) for level, sigma in zip(known[first:], given, strict=False)]
        return [*known[:first], *theirs]
    is_flow = max(given, default=0.0) <= 1
    angles = [math.atan2(sigma, 1 - sigma if is_flow else 1) for sigma in given]
    found = [Level(sigma, angle, is_flow=is_flow) for sigma, angle in zip(given, angles, strict=True)]
    return _turned(found)


def _turned(levels: list[Level]) -> list[Level]:
    """Levels of known angles, with how far each has turned from pure noise."""
    angles = [level.angle or 0.0 for level in levels]
    largest = (math.pi / 2 if level.is_flow else angle for level, angle in zip(levels, angles, strict=True))
    pure_noise = max(largest, default=0.0)
    return [level._replace(turned=pure_noise - angle) for level, angle in zip(levels, angles, strict=True)]


def _parametrisation(prediction: str, signal: float, noise: float, flow: bool) -> Parametrisation:
    """What a prediction (see `prediction_type_of`) is of an input that holds so much signal and noise."""
    both = signal + noise
    match prediction:
        case "epsilon":
            return Parametrisation(max(signal / both, SMALLEST), 1 / both)
        case "sample":
            return Parametrisation(-max(noise / both, SMALLEST), 1 / both)
        case _:
            return VELOCITY if flow else Parametrisation(1 / both, (signal - noise) / both)
