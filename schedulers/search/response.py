"""Placing computed ticks by how the picture responds to each reused one.

Errors of different ticks add up in the picture as vectors: neighbouring ticks push it the same way, so that a long group
costs more than the sum of its squares, and errors of different groups may cancel. No sum of drifts sees either.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from diffcache.schedulers.errors import ConfigError

_TINY = 1e-12
Path = tuple[int, ...]


@dataclass(frozen=True)
class Response:
    """To first order, how pictures move when ticks are reused.

    Attributes:
        moves: float64 [T, D]: how the pictures move when a tick alone is reused and all others are computed, in any
            coordinates that keep lengths and angles (`coordinates`); nothing at tick 0.
        drift: float64 [T, T]; entry [a, t] is how far the feature is at t from what it was at a.
        order: of the polynomial that fills in; 0 holds.
        hindsight: degree of the curve through computed ticks, by which what was filled in between them is made good once
            the next one is computed, in `moves` too; 0: nothing is.
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
        """Computed ticks before a group that its error depends on."""
        return max(self.order + 1, self.hindsight)

    def error(self, ticks: Sequence[int]) -> float:
        """Squared length of what the pictures move by when these ticks alone are computed."""
        ends = [*ticks[1:], self.num_ticks]
        total = torch.stack([self.group(tuple(ticks[i::-1]), until) for i, until in enumerate(ends)]).sum(0)
        return float(total.square().sum())

    def group(self, heads: Path, until: int) -> Tensor:
        """[D]: what they move by when the ticks between heads[0] and `until` are filled in from `heads`, newest first."""
        heads = heads[: self.reach]
        if (heads, until) not in self._groups:
            reused = range(heads[0] + 1, until)
            growth = [self._growth(heads, tick, until) for tick in reused]
            growths = torch.tensor(growth, dtype=self.moves.dtype)
            self._groups[heads, until] = growths @ self.moves[heads[0] + 1 : until]
        return self._groups[heads, until]

    def _growth(self, heads: Path, tick: int, until: int) -> float:
        """Error at a tick over that of the probe, whose heads are the ticks right before it, and which computes the next.

        A polynomial through some ticks errs by the product of the distances to them, sign included; to the newest before it,
        as it was measured. With hindsight it is the one that interpolates, if there is a computed tick after the group.
        """
        growth = float(self.drift[heads[0], tick] / (self.drift[tick - 1, tick] + _TINY))
        known = heads[: self.order + 1]
        if self.hindsight and until < self.num_ticks:
            growth *= until - tick
            known = heads[: self.hindsight]
        return growth * prod((tick - head) / (j + 2) for j, head in enumerate(known[1:]))

    @cached_property
    def _groups(self) -> dict[tuple[Path, int], Tensor]:
        return {}


def coordinates(moves: Tensor) -> Tensor:
    """The same vectors [T, D] in as few coordinates as they span at most, float64 [T, T]."""
    values, vectors = torch.linalg.eigh(moves.double() @ moves.double().T)
    found: Tensor = vectors * values.clamp_min(0).sqrt()
    return found


def placements(response: Response, most: int, longest: int = 8, width: int = 16) -> list[list[int]]:
    """The ticks to compute, for each number of them from the least that is possible to `most`.

    A dynamic programme over (ticks computed so far, the newest of them). What it adds up are vectors, whose sum has no
    least part, so that `width` partial sums are kept for each state instead of one. With hindsight no tick but the run's
    last is left after the last computed one: nothing makes it good there, and the probes do not show by how much it errs.

    Args:
        response: see there.
        most: largest number of computed ticks.
        longest: distance in ticks between two computed ones, at most.
        width: partial sums that are kept.

    Returns:
        Lists of ticks by rising number. The first `order + 1` ticks are computed in each.

    Raises:
        ConfigError: so few ticks cannot be placed `longest` apart.
    """
    end = response.num_ticks
    first = tuple(range(response.order, -1, -1))
    states: dict[Path, list[tuple[Tensor, Path]]] = {first: [(torch.zeros_like(response.moves[0]), first)]}
    found: list[list[int]] = []
    for _ in range(len(first), most + 1):
        offered: dict[Path, list[tuple[Tensor, Path]]] = {}
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
        states = {heads: _shortest(partial, width) for heads, partial in offered.items()}
    if not found:
        raise ConfigError(
            f"most: {most} ticks cannot be placed at most {longest} apart in {end}; allow more."
        )
    return found


def _shortest(partial: list[tuple[Tensor, Path]], count: int) -> list[tuple[Tensor, Path]]:
    lengths = torch.stack([total for total, _ in partial]).square().sum(1)
    return [partial[i] for i in lengths.argsort(stable=True)[:count].tolist()]
