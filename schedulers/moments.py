"""When features were computed."""

from dataclasses import dataclass
from typing import Literal

Axis = Literal["sigma", "tick"]


@dataclass(frozen=True, slots=True)
class Moment:
    """When a feature was, or is to be, computed: its tick and its noise level."""

    tick: int
    sigma: float | None = None
