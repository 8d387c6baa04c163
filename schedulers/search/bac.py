"""Block-wise Adaptive Caching (BAC, arXiv 2506.13456): a schedule for each sub-layer of a denoiser.

It was published for diffusion policies, where the same features are redundant in nearly every rollout.
"""

from collections.abc import Sequence

from torch import Tensor

from diffcache.schedulers.errors import ConfigError
from diffcache.schedulers.search.partition import Partitions


def adaptive_caching(drifts: Tensor, updates: int) -> Tensor:
    """The adaptive caching scheduler: bool [T, S], in which every site computes `updates` ticks of its own.

    It maximises sum_m sum_{t in [c_m, c_{m+1})} similarity[c_m, t] over the update ticks c of each site. Summaries of the
    paper score neighbouring ticks instead, which is another objective and needs no dynamic programme. The published code
    also computes the last tick of a fixed run of 100; here exactly `updates` ticks are computed.

    Args:
        drifts: [S, T, T] of one minus the similarity, averaged over several rollouts if possible. Published: of
            the cosine similarity.
        updates: ticks that each site computes, the first tick among them. Published: 7 or 10 of 100.

    Raises:
        ConfigError: `updates` is out of range.
    """
    return Partitions(drifts, updates).table([updates] * len(drifts))


def volatility(drifts: Tensor) -> Tensor:
    """How much each site's feature changes, float64 [S]: the mean drift over all pairs of ticks.

    Args:
        drifts: [S, T, T], mean absolute differences.
    """
    pairs = drifts.shape[-1] * (drifts.shape[-1] - 1) / 2
    return drifts.double().triu(1).sum((-2, -1)) / pairs


def bubbling_union(
    table: Tensor, layers: Sequence[int], feed_forward: Sequence[bool], volatilities: Tensor, repaired: int
) -> Tensor:
    """The Bubbling Union repair: bool [T, S], in which the most volatile feed-forwards compute more often.

    A feed-forward that computes on stale inputs stores their error until it computes again. So each of the `repaired` most
    volatile feed-forwards also computes whenever a feed-forward of a deeper layer does (in the table before the repair).
    This costs compute: compare `table.sum(0)` before and after. The published code also ranks attentions, and unites a
    layer with itself.

    Args:
        table: bool [T, S], what `adaptive_caching` returns.
        layers: the layer of each site, 0 for the first.
        feed_forward: whether each site is a feed-forward.
        volatilities: [S], what `volatility` returns.
        repaired: how many feed-forwards to repair. Published: 5 in simulation, 3 on a robot.

    Raises:
        ConfigError: `repaired` is larger than the number of feed-forwards.
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
