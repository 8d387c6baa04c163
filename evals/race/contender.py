"""What takes part in the race: anything that can be attached to a pipeline, at several settings of one knob."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

OURS = "diffcache"
WARM_UP = 3
"""First ticks, which every contender computes that is told which ticks to compute."""


@dataclass(frozen=True)
class Setup:
    """What a contender may know about the run: the testbed's name, and the number of steps of the full run."""

    testbed: str
    steps: int


@dataclass(frozen=True)
class Contender:
    """A method at several settings of its knob.

    Attributes:
        name: of the method, as the tables show it.
        package: where it comes from; "diffcache" for our own.
        knob: the option that is varied.
        settings: its values in order, the one that computes least first; of a peer at least eight.
        attach: attaches the method to a plain pipeline at a setting; afterwards the pipeline is plain again.
    """

    name: str
    package: str
    knob: str
    settings: tuple[float, ...]
    attach: Callable[[Any, float, Setup], AbstractContextManager[None]]

    @property
    def ours(self) -> bool:
        return self.package == OURS

    @property
    def full_name(self) -> str:
        return full_name(self.package, self.name)


def full_name(package: str, name: str) -> str:
    """How results name a contender: several packages have methods of one name."""
    return f"{package}: {name}"


def spread(computed: int, steps: int) -> list[bool]:
    """Which ticks to compute: the warm-up, and the others evenly over the rest of the run; fewer than all."""
    rest = computed - WARM_UP
    chosen = {WARM_UP - 1 + round((i + 1) * (steps - WARM_UP) / (rest + 1)) for i in range(rest)}
    return [tick < WARM_UP or tick in chosen for tick in range(steps)]
