"""Choosing computed ticks by how the picture responds to each reused tick.

In the picture the errors of different ticks add up as vectors. Neighbouring ticks move it in the same direction, so a long group
errs by more than the sum of squares says. Errors of different groups may cancel. A sum of drifts shows neither.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from diffcache.schedulers.errors import ConfigError

_TINY = 1e-12
"""Added to drifts that divide."""

WIDTH = 16
"""How many partial sums `placements` keeps of each state. Our choice."""

Heads = tuple[int, ...]
"""Computed ticks, newest first."""


@dataclass(frozen=True)
class PictureResponse:
    """How the pictures move when ticks are reused, to first order.

    Attributes:
        moves: float64 [T, D]: how the pictures move when one tick is reused and all others are computed, in any coordinates
            that keep lengths and angles (see `coordinates`); zeros at tick 0.
        drift: float64 [T, T]; entry [a, t] is how far the feature at t is from the feature at a.
        order: of the polynomial that predicts reused ticks; 0 holds.
        hindsight: degree of the curve with which hindsight corrects reused ticks; 0: no hindsight. `moves` were measured
            with the same.
    """

    moves: Tensor
    drift: Tensor
    order: int = 0
    hindsight: int = 0

    @property
    def num_ticks(self) -> int:
        return len(self.moves)

    @property
    def reach(self) -> int:
        """How many computed ticks the error of a group depends on."""
        return max(self.order + 1, self.hindsight)

    def error(self, ticks: Sequence[int]) -> float:
        """Squared distance by which the pictures move when only these ticks are computed."""
        ends = [*ticks[1:], self.num_ticks]
        total = torch.stack([self.group(tuple(ticks[i::-1]), until) for i, until in enumerate(ends)]).sum(0)
        return float(total.square().sum())

    def group(self, heads: Heads, until: int) -> Tensor:
        """[D]: how the pictures move when the ticks after heads[0] and before `until` are reused.

        Args:
            heads: the computed ticks from which they are predicted.
            until: the next computed tick, or the length of the run.
        """
        heads = heads[: self.reach]
        if (heads, until) not in self._groups:
            reused = range(heads[0] + 1, until)
            growth = [self._growth(heads, tick, until) for tick in reused]
            growths = torch.tensor(growth, dtype=self.moves.dtype)
            self._groups[heads, until] = growths @ self.moves[heads[0] + 1 : until]
        return self._groups[heads, until]

    def _growth(self, heads: Heads, tick: int, until: int) -> float:
        """The error at a tick over its error in `moves`, where the ticks before it and the tick after it are computed.

        A polynomial through some ticks errs by the product of the distances to them, sign included. For the distance to the
        newest of them the measured drift is taken. With hindsight the polynomial also goes through the next computed tick, if
        there is one.
        """
        growth = float(self.drift[heads[0], tick] / (self.drift[tick - 1, tick] + _TINY))
        known = heads[: self.order + 1]
        if self.hindsight and until < self.num_ticks:
            growth *= until - tick
            known = heads[: self.hindsight]
        return growth * prod((tick - head) / (j + 2) for j, head in enumerate(known[1:]))

    @cached_property
    def _groups(self) -> dict[tuple[Heads, int], Tensor]:
        return {}


def coordinates(moves: Tensor) -> Tensor:
    """The vectors [T, D] in T coordinates that keep their lengths and angles, float64 [T, T]."""
    values, vectors = torch.linalg.eigh(moves.double() @ moves.double().T)
    found: Tensor = vectors * values.clamp_min(0).sqrt()
    return found


def placements(response: PictureResponse, most: int, longest: int = 8) -> list[list[int]]:
    """The ticks to compute, for each number of them from the smallest that is possible to `most`.

    A dynamic programme over (number of computed ticks, the newest of them). It adds vectors, so the shortest sum need not
    contain the shortest partial sum: it keeps `WIDTH` partial sums of each state instead of one. With hindsight at most the
    run's last tick is reused after the last computed one: nothing corrects a tick there, and `moves` do not show its error.

    Args:
        response: of the pictures.
        most: the largest number of computed ticks.
        longest: the largest distance between two computed ticks.

    Returns:
        Lists of ticks by rising number. Each contains the first `order + 1` ticks.

    Raises:
        ConfigError: `most` ticks are too few to be at most `longest` apart.
    """
    end = response.num_ticks
    first = tuple(range(response.order, -1, -1))
    states: dict[Heads, list[tuple[Tensor, Heads]]] = {first: [(torch.zeros_like(response.moves[0]), first)]}
    found: list[list[int]] = []
    for _ in range(len(first), most + 1):
        offered: dict[Heads, list[tuple[Tensor, Heads]]] = {}
        for heads, partial in states.items():
            for until in range(heads[0] + 1, min(heads[0] + longest, end) + 1):
                if response.hindsight and until == end > heads[0] + 2:
                    continue
                group = response.group(heads, until)
                state = (until, *heads)[: response.reach] if until < end else ()
                offered.setdefault(state, []).extend(
                    (total + group, (until, *path)) for total, path in partial
                )
        if () in offered:
            found.append(sorted(_shortest(offered.pop(()), 1)[0][1][1:]))
        states = {heads: _shortest(partial, WIDTH) for heads, partial in offered.items()}
    if not found:
        raise ConfigError(
            f"most: {most} ticks cannot be placed at most {longest} apart in {end}; allow more ticks."
        )
    return found


def _shortest(partial: list[tuple[Tensor, Heads]], count: int) -> list[tuple[Tensor, Heads]]:
    """The partial sums of least length."""
    lengths = torch.stack([total for total, _ in partial]).square().sum(1)
    return [partial[i] for i in lengths.argsort(stable=True)[:count].tolist()]
