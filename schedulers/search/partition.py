"""The dynamic programme that all schedule searches share: where to compute when the rest is held.

The ticks of a site are cut into groups; the first tick of a group computes and the rest of it holds. With prefix sums a
group's cost is read off in O(1), and K groups of at most L ticks cost O(K T L) for each site; all sites go together.
"""

import torch
from torch import Tensor

from diffcache.schedulers.errors import ConfigError


class Partitions:
    """The best ways to cut T ticks into 1, 2, ..., `most` groups, for each of S sites.

    Minimises sum over groups of sum_{t in group} drift[head, t]. This is CacheQuant's objective, and BAC's with
    drift = 1 - similarity.

    Args:
        drifts: [S, T, T]; entry [s, a, t] is what holding a's feature costs site s at t.
        most: largest number of groups that will be asked for; T is enough for every one.
        shortest, longest: bounds on a group's length in ticks; None: no bound.

    Attributes:
        costs: float64 [S, most + 1]; entry [s, k] is the least cost with k groups, infinite where none fits.

    Raises:
        ConfigError: bounds or `most` out of range.
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
        """Bool [T, S], True where computed, with so many groups for each site.

        Raises:
            ConfigError: no cut into that many groups keeps the bounds.
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
        """best[k, n] = min over j of best[k - 1, j] + cost of the group j .. n - 1; `_head` keeps the j."""
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
            least, choice = (best[:, heads] + paid).min(-1)  # the shortest group where several are best
            best = torch.cat([torch.full((sites, 1), torch.inf, dtype=torch.float64), least], 1)
            self._head[k, :, 1:] = heads.expand(sites, -1, -1).gather(-1, choice.unsqueeze(-1)).squeeze(-1)
            self.costs[:, k] = best[:, ticks]
