"""What one step shows of guidance: its scale, and how large the velocities of its passes are."""

from collections.abc import Sequence

import torch
from torch import Tensor

from diffcache.noise_schedulers.levels import Parametrisation

TOLERANCE = 0.05
"""What the noise scheduler gets may differ by so much of it from plain guidance of what was returned: that may have been rounded."""

Passes = tuple[Tensor, Tensor]


def passes_of(returned: Sequence[Tensor], guided: Tensor) -> Passes | None:
    """The first and the last pass of a tick, the same where there is one; None where these are no one or two passes.

    Args:
        returned: by each call, [batch, ...]; a single one with twice as many rows as `guided` holds two passes.
        guided: what the noise scheduler got, [batch, ...].
    """
    if len(returned) == 1 and len(returned[0]) == 2 * len(guided):
        returned = returned[0].chunk(2)
    if not 1 <= len(returned) <= 2 or any(one.shape != guided.shape for one in returned):
        return None
    return returned[0], returned[-1]


def shown(passes: Passes, guided: Tensor) -> Tensor:
    """What a step shows of plain guidance (arXiv 2207.12598, equation 6), on the device, [3].

    These are the share of the second pass; what is left unexplained, and how far the passes are apart, both as a fraction of `guided`, squared.
    """
    first, second = (one.float() for one in passes)
    apart, moved = second - first, guided.float() - first
    share = ((moved * apart).sum() / apart.square().sum()).nan_to_num()
    size = guided.float().square().sum()
    left, distance = (moved - share * apart).square().sum() / size, apart.square().sum() / size
    return torch.stack([share, left, distance])


def scale_of(found: Sequence[float]) -> float | None:
    """The scale of guidance that a step has shown, to one decimal; 1 where it got one pass as it was; None where it got something else.

    Which pass is the conditional one need not be known: with u + s * (c - u) it is that of the larger weight.

    Args:
        found: see `shown`.
    """
    share_of_second, unexplained, _ = found
    if not unexplained <= TOLERANCE**2:
        return None
    return round(max(share_of_second, 1 - share_of_second), 1)


def is_clear(found: Sequence[float]) -> bool:
    """Whether passes are equal, because there is one, or so far apart that rounding hardly changes the scale.

    Args:
        found: see `shown`.
    """
    _, _, distance = found
    return distance == 0 or distance > TOLERANCE**2


def velocity_sizes(passes: Passes, output: Parametrisation, sample: Tensor) -> Tensor:
    """How large the velocities v of two passes are, on the device, [4].

    These are <v_1, v_1>, <v_2, v_2> and <v_1, v_2>, and what rounding of the outputs may add to the first.

    Args:
        passes: what they returned.
        output: what that is of velocity and sample.
        sample: that the denoiser got, of the same shape.
    """
    of_velocity, of_input = output
    first, second = ((one.float() - of_input * sample.float()) / of_velocity for one in passes)
    rounding = (torch.finfo(passes[0].dtype).eps / of_velocity) ** 2 * passes[0].float().square().sum()
    return torch.stack([first.square().sum(), second.square().sum(), (first * second).sum(), rounding])
