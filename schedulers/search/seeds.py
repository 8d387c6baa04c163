"""Hand-made tables, bool [T, S], from which searches start and which they must beat."""

from collections.abc import Sequence

import torch
from torch import Tensor

from diffcache.schedulers.errors import ConfigError

WARMUP_STEPS = 2
"""Length of the warm-up of `tgate` in ticks, as ECAD has it."""


def every(num_ticks: int, num_sites: int, interval: int) -> Tensor:
    """Computes all sites at every `interval`-th tick (FORA, arXiv 2407.01425).

    Raises:
        ConfigError: the interval is below 1.
    """
    if interval < 1:
        raise ConfigError(f"interval: {interval} is not a positive number of ticks.")
    return (torch.arange(num_ticks) % interval == 0).unsqueeze(1).repeat(1, num_sites)


def tgate(num_ticks: int, kinds: Sequence[str], gate: int, interval: int) -> Tensor:
    """T-GATE's table (arXiv 2404.02747) as ECAD has it among its seeds, without the averaging of guidance branches.

    Before the tick `gate`, cross-attention is computed at every tick, and self-attention during the warm-up and at every
    `interval`-th tick. From `gate` on, self-attention is computed at every tick and cross-attention never. All other sites are
    always computed. (The method `tgate` also computes self-attention right after the warm-up and right before the gate, as T-GATE's authors do.)

    Args:
        num_ticks: T.
        kinds: what each site is: "self-attention", "cross-attention", or anything else.
        gate: first tick of the second phase.
        interval: distance between computed ticks of self-attention in the first phase.
    """
    ticks = torch.arange(num_ticks)
    early = ticks < gate
    columns = {
        "self-attention": ~early | (ticks < WARMUP_STEPS) | (ticks % interval == 0),
        "cross-attention": early | (ticks == 0),
    }
    always = torch.ones(num_ticks, dtype=torch.bool)
    return torch.stack([columns.get(kind, always) for kind in kinds], 1)
