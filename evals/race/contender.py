"""What takes part in the race: ways to run a pipeline, each at many settings of its options."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

OURS = "diffcache"
WARM_UP = 3
"""First ticks, which every contender computes that is told which ticks to compute."""
SHARES = (0.14, 0.19, 0.25, 0.32, 0.41, 0.49, 0.57, 0.66)
"""Of a run's ticks: how many are computed where a contender can choose."""

Options = Mapping[str, Any]
"""What a contender is set to, as it would be typed. "steps" and "solver" are of the pipeline, everything else of the method."""


@dataclass(frozen=True)
class RaceSetup:
    """What a contender may know about the run: the testbed's name, and the number of steps of the full run."""

    testbed: str
    steps: int


@dataclass(frozen=True)
class Sweep:
    """Settings that differ in one option.

    Attributes:
        knob: the option.
        values: its values; the first computes least.
        fixed: the other options.
    """

    knob: str
    values: tuple[Any, ...]
    fixed: Options = field(default_factory=dict)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({**self.fixed, self.knob: value} for value in self.values)


@dataclass(frozen=True)
class Contender:
    """A method with all of its settings.

    Attributes:
        name: of the method, as the tables show it.
        package: where it comes from; "diffcache" for our own, "" for the plain pipeline.
        sweeps: of its options, for a run.
        attach: attaches the method to a plain pipeline; afterwards the pipeline is plain again.
        kind: "swept": its settings are tried, and the best are chosen. "whole ticks": each budget has one setting, with as many
            ticks as the budget allows. "as typed": it has one setting, its defaults, and is compared at whatever that computes.
        group: contenders of a group race each other first: only those near the best of it are chosen from. "": alone.
        chosen_by: what settings are chosen by: the distance to the full run, or to the true solution, or once by each.
    """

    name: str
    package: str
    sweeps: Callable[[RaceSetup], tuple[Sweep, ...]]
    attach: Callable[[Any, Options, RaceSetup], AbstractContextManager[None]]
    kind: Literal["swept", "whole ticks", "as typed"] = "swept"
    group: str = ""
    chosen_by: tuple[Literal["full", "truth"], ...] = ("full",)

    @property
    def ours(self) -> bool:
        return self.package in (OURS, "")

    @property
    def full_name(self) -> str:
        return full_name(self.package, self.name)


def full_name(package: str, name: str) -> str:
    """How results name a contender: several packages have methods of one name."""
    return f"{package}: {name}" if package else name


def typed(name: str, package: str, attach: Callable[[Any], AbstractContextManager[None]]) -> Contender:
    """A contender as its documentation first shows it, with all options left alone."""
    return Contender(
        name,
        package,
        lambda setup: (Sweep("defaults", (True,)),),
        lambda pipe, _, __: attach(pipe),
        "as typed",
    )


def tick_counts(steps: int) -> tuple[int, ...]:
    """Numbers of computed ticks to try: all of a short run, and about `SHARES` of a long one."""
    if steps <= len(SHARES):
        return tuple(range(1, steps))
    return tuple(sorted({round(share * steps) for share in SHARES}))


def whole_ticks(steps: int, budgets: tuple[float, ...]) -> tuple[int, ...]:
    """The numbers of ticks that budgets allow, the fewest first."""
    return tuple(sorted({int(steps / budget + 1e-9) for budget in budgets}))


def even_mask(computed: int, steps: int) -> list[bool]:
    """Which ticks to compute: the warm-up, and the others evenly over the rest of the run; fewer than all."""
    warm_up = min(WARM_UP, computed)
    rest = computed - warm_up
    chosen = {warm_up - 1 + round((i + 1) * (steps - warm_up) / (rest + 1)) for i in range(rest)}
    return [tick < warm_up or tick in chosen for tick in range(steps)]
