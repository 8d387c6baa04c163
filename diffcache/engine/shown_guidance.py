"""What one step shows of guidance: its scale, and how large the velocities of its passes are."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from diffcache.noise_schedulers.levels import Parametrisation

TOLERANCE = 0.05
"""Largest deviation of what the noise scheduler got from plain guidance, as a fraction of it, that is put down to rounding."""

TwoOutputs = tuple[Tensor, Tensor]


def passes_of(returned: Sequence[Tensor], guided: Tensor) -> TwoOutputs | None:
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


class PlainGuidance(NamedTuple):
    """What a step shows of plain guidance (arXiv 2207.12598, equation 6).

    Attributes:
        share_of_second: weight of the second pass in what the noise scheduler got.
        unexplained: what no weighted mean of both passes gives of that, as a fraction of it, squared.
        distance: how far the passes are apart, as a fraction of the same size, squared.
    """

    share_of_second: float
    unexplained: float
    distance: float

    @property
    def scale(self) -> float | None:
        """Of guidance, to one decimal; 1 where the step got one pass as it was; None where it got something else.

        Which pass is the conditional one need not be known: with u + s * (c - u) it is that of the larger weight.
        """
        return round(self.weight, 1) if self.unexplained <= TOLERANCE**2 else None

    @property
    def weight(self) -> float:
        """Of the conditional pass in what the noise scheduler got: the scale, as it is."""
        return max(self.share_of_second, 1 - self.share_of_second)

    @property
    def is_conditional_first(self) -> bool:
        """Whether the conditional pass is the first."""
        return self.share_of_second <= 0.5

    @property
    def is_clear(self) -> bool:
        """Whether passes are equal, because there is one, or so far apart that rounding hardly changes the scale."""
        return self.distance == 0 or self.distance > TOLERANCE**2


class Sizes(NamedTuple):
    """How large the velocities v of two passes are, squared and summed.

    Attributes:
        first, second: <v_1, v_1> and <v_2, v_2>.
        both: <v_1, v_2>.
        rounding: what rounding of the outputs may add to either.
    """

    first: float
    second: float
    both: float
    rounding: float


def plain_guidance(passes: TwoOutputs, guided: Tensor) -> Tensor:
    """The numbers of `PlainGuidance`, on the device, [3].

    Args:
        passes: what they returned.
        guided: what the noise scheduler got, of the same shape.
    """
    first, second = (one.float() for one in passes)
    apart, moved = second - first, guided.float() - first
    share = ((moved * apart).sum() / apart.square().sum()).nan_to_num()
    size = guided.float().square().sum()
    left, distance = (moved - share * apart).square().sum() / size, apart.square().sum() / size
    return torch.stack([share, left, distance])


def velocity_sizes(passes: TwoOutputs, parametrisation: Parametrisation, sample: Tensor) -> Tensor:
    """The numbers of `Sizes`, on the device, [4].

    Args:
        passes: what they returned.
        parametrisation: what that is of velocity and sample.
        sample: that the denoiser got, of the same shape.
    """
    of_velocity, of_input = parametrisation
    first, second = ((one.float() - of_input * sample.float()) / of_velocity for one in passes)
    largest = torch.stack([one.float().square().sum() for one in passes]).max()
    rounding = (torch.finfo(passes[0].dtype).eps / of_velocity) ** 2 * largest
    return torch.stack([first.square().sum(), second.square().sum(), (first * second).sum(), rounding])
