"""From a predictor's description, as schedules hold it, to the predictor."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diffcache.prediction.average_velocity import AverageVelocity
from diffcache.prediction.predictors import (
    Chebyshev,
    Conditional,
    Hold,
    Lerp,
    Polynomial,
    Predictor,
    Scaled,
    Taylor,
)
from diffcache.schedulers.errors import ScheduleError
from diffcache.schedulers.numbers_given import is_number
from diffcache.trajectory import process
from diffcache.trajectory.transfer import OWN, UNIVERSAL, Measurement, are_angles


def predictor_from(description: Mapping[str, Any]) -> Predictor:
    """The predictor with this description (see `Predictor.describe`).

    Raises:
        ScheduleError: the description is of no known predictor.
    """
    match description:
        case {"name": "hold"}:
            return Hold()
        case {"name": "polynomial", "order": int(order), "axis": "angle" | "sigma" | "tick" as axis} if (
            order >= 0
        ):
            return Polynomial(order, axis)
        case {"name": "taylor", "order": int(order), "first": int(first)} if order >= 0:
            return Taylor(order, first)
        case {
            "name": "chebyshev", "depth": int(depth), "length": int(length), "degree": int(degree),
            "ridge": float(ridge), "mixture": float(mixture),
        } if min(depth, length, degree) > 0 and ridge >= 0:  # fmt: skip
            return Chebyshev(depth, length, degree, ridge, mixture)
        case {
            "name": "conditional", "of": process.MODELLED, "covariance": list(rows), "between": list(between),
            "noise": float(noise), "window": int(window),
        } if window > 0 and _is_covariance(rows) and _is_covariance(between) and _is_measured(description, len(between)):  # fmt: skip
            believed, covariance = np.array(rows, dtype=float), np.array(between, dtype=float)
            return Conditional(believed, noise, window, covariance, _measured(description))
        case {"name": "conditional"} if "of" not in description:
            raise ScheduleError("predictor: its covariance is of an older version's velocities: tune again.")
        case {"name": "average velocity", "levels": list(levels), "backs": list(backs)} if (
            _are_numbers(levels)
            and all(type(back) is int and back >= 0 for back in backs)
            and len(levels) == len(backs) + 1
        ):
            return AverageVelocity(levels, backs)
        case {"name": "lerp", "weight": int() | float() as weight}:
            return Lerp(weight)
        case {"name": "scaled", "ratios": list(ratios)} if _are_numbers(ratios):
            return Scaled(ratios)
    shown = {name: "[...]" if isinstance(value, list) else value for name, value in description.items()}
    raise ScheduleError(f"predictor: {shown} is not a predictor that this version knows.")


def _is_covariance(rows: Sequence[Any]) -> bool:
    return bool(rows) and all(
        isinstance(row, list) and len(row) == len(rows) and _are_numbers(row) and row[i] > 0
        for i, row in enumerate(rows)
    )


def _is_measured(description: Mapping[str, Any], ticks: int) -> bool:
    """Whether a description says where a covariance of so many ticks was measured, or nothing of that."""
    match description:
        case {"angles": list(angles), "response": [list(), list()] as parts}:
            rows = (angles, *parts)
        case {"angles": list(angles), "response": None}:
            rows = (angles,)
        case _:
            return "angles" not in description
    known = [] if description.get("pure_noise") is None else [description["pure_noise"]]
    amplification = description.get("amplification")
    return (
        all(len(row) == ticks and _are_numbers(row) for row in rows)
        and _are_numbers(known)
        and are_angles([*angles, *known])
        and (amplification is None or (is_number(amplification) and amplification >= 1))
        and description.get("predicts_with", OWN) in (OWN, UNIVERSAL)
    )


def _measured(description: Mapping[str, Any]) -> Measurement | None:
    """What `Measurement.describe` described; None where nothing was."""
    angles, response = description.get("angles"), description.get("response")
    if angles is None:
        return None
    parts = None if response is None else np.array(response, dtype=float)
    amplification, predicts_with = description.get("amplification"), description.get("predicts_with", OWN)
    return Measurement(tuple(angles), parts, description.get("pure_noise"), amplification, predicts_with)


def _are_numbers(values: list[Any]) -> bool:
    return all(map(is_number, values))
