"""What takes part in the race: anything that can be attached to a pipeline, with one knob."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

OURS = "diffcache"
WARM_UP = 3
"""Ticks that are computed first, for all that are told which ticks to compute."""


@dataclass(frozen=True)
class Track:
    """What a contender may know of the course: one testbed, and how far.

    Attributes:
        name: of the testbed.
        steps: of the full run.
    """

    name: str
    steps: int


@dataclass(frozen=True)
class Contender:
    """A method at several settings of its knob.

    Attributes:
        name: the row's name.
        package: where it comes from; "diffcache" for our own.
        knob: what is swept.
        settings: in order; of a peer at least eight.
        attach: attaches it to a plain pipeline at a setting, and leaves the pipeline plain again.
    """

    name: str
    package: str
    knob: str
    settings: tuple[float, ...]
    attach: Callable[[Any, float, Track], AbstractContextManager[None]]

    @property
    def ours(self) -> bool:
        return self.package == OURS


def spread(computed: int, steps: int) -> list[bool]:
    """Which ticks to compute: the warm-up, and the rest evenly over what is left; fewer than all."""
    rest = computed - WARM_UP
    chosen = {WARM_UP - 1 + round((i + 1) * (steps - WARM_UP) / (rest + 1)) for i in range(rest)}
    return [tick < WARM_UP or tick in chosen for tick in range(steps)]
