"""Block-wise Adaptive Caching (BAC, arXiv 2506.13456): a schedule for each sub-layer of a denoiser.

Published for diffusion policies, whose redundancy hardly differs between rollouts.
"""

from collections.abc import Sequence

from torch import Tensor

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.partition import Partitions


def adaptive_caching(drifts: Tensor, updates: int) -> Tensor:
    """The adaptive caching scheduler: bool [T, S], every site computed at `updates` ticks of its own.

    Maximises sum_m sum_{t in [c_m, c_{m+1})} similarity[c_m, t] over the update ticks c of each site. (Summaries of the
    paper score neighbouring ticks instead; that is another objective, which needs no dynamic programme.) The
    published code forces the last tick besides, for a fixed run of 100; here `updates` is what is computed.

    Args:
        drifts: [S, T, T] of one minus the similarity; `drift_of(..., "cosine")` is the published choice. Average over
            several rollouts where they can be had.
        updates: ticks that each site computes, the first among them; published: 7 or 10 of 100.

    Raises:
        ConfigError: `updates` out of range.
    """
    return Partitions(drifts, updates).table([updates] * len(drifts))


def volatility(drifts: Tensor) -> Tensor:
    """How much each site's feature changes, float64 [S]: its mean drift over all pairs of ticks.

    Args:
        drifts: [S, T, T] by the "l1" metric.
    """
    pairs = drifts.shape[-1] * (drifts.shape[-1] - 1) / 2
    return drifts.double().triu(1).sum((-2, -1)) / pairs


def bubbling_union(
    table: Tensor, layers: Sequence[int], feed_forward: Sequence[bool], volatilities: Tensor, repaired: int
) -> Tensor:
    """The Bubbling Union repair: bool [T, S], with the most volatile feed-forwards computed more often.

    A feed-forward that is computed while those before it are stale holds their error until it is computed again. So each
    of the `repaired` most volatile feed-forwards is also computed whenever a feed-forward of a deeper layer is,
    by the schedules before the repair. This costs compute: compare `table.sum(0)` before and after. (The
    published code ranks attentions too, and lets a layer bubble into itself.)

    Args:
        table: bool [T, S], what `adaptive_caching` returns.
        layers: each site's layer, 0 the first.
        feed_forward: whether a site is one.
        volatilities: [S], what `volatility` returns.
        repaired: how many feed-forwards; published: 5 in simulation, 3 on a robot; 0 repairs none.

    Raises:
        ConfigError: more are asked for than there are feed-forwards.
    """
    candidates = [site for site, is_one in enumerate(feed_forward) if is_one]
    if not 0 <= repaired <= len(candidates):
        raise ConfigError(f"repaired: {repaired} is not between 0 and the {len(candidates)} feed-forwards.")
    ranked = sorted(candidates, key=lambda site: -float(volatilities[site]))
    result = table.clone()
    for site in ranked[:repaired]:
        deeper = [other for other in candidates if layers[other] > layers[site]]
        result[:, site] |= table[:, deeper].any(1)
    return result
