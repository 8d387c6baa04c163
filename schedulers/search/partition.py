"""The dynamic programme of the schedule searches: which ticks to compute if the others are held.

It cuts the ticks of a site into groups, each of which computes its first tick and holds the others. Prefix sums give the
cost of a group in O(1), so K groups of at most L ticks take O(K T L) for each site. All sites are solved at once.
"""

import torch
from torch import Tensor

from diffcache.schedulers.errors import ConfigError


class Partitions:
    """The best cuts of T ticks into 1, 2, ..., `most` groups, for each of S sites.

    The cost of a cut is sum over its groups of sum_{t in group} drift[head, t], where the head is the group's first tick. This
    is CacheQuant's objective, and with drift = 1 - similarity BAC's.

    Args:
        drifts: [S, T, T]; entry [s, a, t] is the error of site s at t if the feature of a is held.
        most: the largest number of groups, at most T.
        shortest, longest: bounds of a group's length in ticks; None: no bound.

    Attributes:
        costs: float64 [S, most + 1]; entry [s, k] is the least cost with k groups, infinite where no cut keeps the bounds.

    Raises:
        ConfigError: `most` or the bounds are out of range.
    """

    def __init__(self, drifts: Tensor, most: int, shortest: int = 1, longest: int | None = None) -> None:
        self.num_ticks = drifts.shape[-1]
        longest = self.num_ticks if longest is None else min(longest, self.num_ticks)
        if not 1 <= shortest <= longest:
            raise ConfigError(
                f"shortest: {shortest} is not between 1 and the longest group of {longest} ticks."
            )
        if not 1 <= most <= self.num_ticks:
            raise ConfigError(f"most: {most} groups do not fit into {self.num_ticks} ticks; ask for fewer.")
        self._solve(drifts.double(), most, shortest, longest)

    def table(self, groups: list[int]) -> Tensor:
        """The best table, bool [T, S].

        Args:
            groups: the number of groups of each site, which is the number of ticks that it computes.

        Raises:
            ConfigError: no cut into so many groups keeps the bounds.
        """
        table = torch.zeros(self.num_ticks, len(self.costs), dtype=torch.bool)
        for site, count in enumerate(groups):
            if not bool(self.costs[site, count].isfinite()):
                fitting = self.costs[site].isfinite().nonzero().flatten().tolist()
                raise ConfigError(
                    f"groups: {count} groups within the bounds cannot cover {self.num_ticks} ticks; "
                    f"possible are {fitting[0]} to {fitting[-1]}."
                )
            end = self.num_ticks
            for k in range(count, 0, -1):
                end = int(self._head[k, site, end])
                table[end, site] = True
        return table

    def _solve(self, drifts: Tensor, most: int, shortest: int, longest: int) -> None:
        """best[k, n] = min over j of best[k - 1, j] + cost of the group j .. n - 1; `_head` holds these j."""
        sites, ticks = drifts.shape[0], self.num_ticks
        ends = torch.arange(1, ticks + 1)
        heads = ends.unsqueeze(1) - torch.arange(shortest, longest + 1)  # [T, L]
        begins_inside = heads >= 0
        heads = heads.clamp_min(0)
        paid = drifts.triu().cumsum(-1)[:, heads, ends.unsqueeze(1) - 1]  # [S, T, L]
        paid = paid.masked_fill(~begins_inside, torch.inf)

        best = torch.full((sites, ticks + 1), torch.inf, dtype=torch.float64)
        best[:, 0] = 0
        self.costs = torch.full((sites, most + 1), torch.inf, dtype=torch.float64)
        self._head = torch.zeros(most + 1, sites, ticks + 1, dtype=torch.int32)
        for k in range(1, most + 1):
            least, choice = (best[:, heads] + paid).min(-1)  # of several best groups the shortest
            best = torch.cat([torch.full((sites, 1), torch.inf, dtype=torch.float64), least], 1)
            self._head[k, :, 1:] = heads.expand(sites, -1, -1).gather(-1, choice.unsqueeze(-1)).squeeze(-1)
            self.costs[:, k] = best[:, ticks]
