"""Hand-made tables, bool [T, S]: where a search begins, and what it must beat."""

from collections.abc import Sequence

import torch
from torch import Tensor

from diffcache.schedulers.errors import ConfigError


def every(num_ticks: int, num_sites: int, interval: int) -> Tensor:
    """All sites at every `interval`-th tick (FORA, arXiv 2407.01425); 1 computes everything.

    Raises:
        ConfigError: an interval below 1.
    """
    if interval < 1:
        raise ConfigError(f"interval: {interval} is not a positive number of ticks.")
    return (torch.arange(num_ticks) % interval == 0).unsqueeze(1).repeat(1, num_sites)


def tgate(num_ticks: int, kinds: Sequence[str], gate: int, interval: int, warmup_steps: int = 2) -> Tensor:
    """T-GATE's plan (arXiv 2404.02747), without its averaging of guidance branches.

    Before `gate`, cross-attention is computed at every tick and self-attention in the warm-up and at every
    `interval`-th tick; from `gate` on, self-attention at every tick and cross-attention never. Whatever else there is, is
    always computed.

    Args:
        num_ticks: T.
        kinds: what each site is: "self-attention", "cross-attention", or anything else.
        gate: first tick of the second phase.
        interval: as above.
        warmup_steps: ticks at which self-attention is computed at the start.
    """
    ticks = torch.arange(num_ticks)
    early = ticks < gate
    plans = {
        "self-attention": ~early | (ticks < warmup_steps) | (ticks % interval == 0),
        "cross-attention": early | (ticks == 0),
    }
    always = torch.ones(num_ticks, dtype=torch.bool)
    return torch.stack([plans.get(kind, always) for kind in kinds], 1)


def sparse(num_ticks: int, sites: Sequence[int], num_sites: int, reused: int) -> Tensor:
    """All computed but these sites at `reused` evenly spaced ticks: the gentlest of ECAD's seeds.

    Raises:
        ConfigError: the first tick would be reused too.
    """
    if not 0 <= reused < num_ticks:
        raise ConfigError(f"reused: {reused} is not between 0 and {num_ticks - 1}; the first tick computes.")
    table = torch.ones(num_ticks, num_sites, dtype=torch.bool)
    ticks = torch.linspace(0, num_ticks, reused + 2)[1:-1].ceil().long()
    table[ticks.unsqueeze(1), torch.tensor(sites)] = False
    return table
