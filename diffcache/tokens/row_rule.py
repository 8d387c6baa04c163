"""Row rules: which of the picture's tokens a computed call computes, and which calls compute all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from diffcache.tokens.grids import Grid, changed_places, grid_of, places_in
from diffcache.tokens.region import edited_tokens, smoothed

MOST = 0.9
"""Above this share of the tokens all of them are computed."""


@dataclass(frozen=True)
class Sight:
    """What a source of rows may look at.

    Attributes:
        latent: the call's, [batch, tokens, channels] or [batch, channels, ..., height, width].
        before: that of the tick before.
        sigma, sigma_before: noise levels of both; None where unknown.
        grid: of the picture's tokens, where latents are packed and the denoiser's arguments tell it.
    """

    latent: Tensor
    before: Tensor
    sigma: float | None = None
    sigma_before: float | None = None
    grid: Grid | None = None

    @property
    def moving(self) -> Tensor:
        """Places that change from tick to tick, bool [batch, places...]; references and history do not."""
        return changed_places(self.before, self.latent)


Source = Callable[[Sight], Tensor]
"""Gives the places of the latents that are computed, bool [batch or 1, places...]."""


@dataclass(frozen=True, eq=False)
class Masked:
    """The tokens under a picture's mask.

    Attributes:
        mask: bool [H, W] or [batch, H, W] at the picture's resolution; True is computed.
    """

    mask: Tensor

    def __call__(self, sight: Sight) -> Tensor:
        mask = self.mask.to(sight.latent.device)
        return places_in(sight.latent, mask if mask.ndim == 3 else mask[None], sight.moving, sight.grid)


@dataclass(frozen=True)
class Moving:
    """All tokens but those that stand still from tick to tick: reference pictures, history frames."""

    def __call__(self, sight: Sight) -> Tensor:
        return sight.moving


@dataclass(frozen=True)
class Region:
    """The region that an edit changes (RegionE, see `diffcache.tokens.region`): the result as it is foreseen, beside the reference.

    The result is x - sigma * v, with the velocity v = (x - x') / (sigma - sigma') of the step before: guidance is part of it. Where
    the reference has another number of tokens than the picture, all tokens of the picture are computed.

    Attributes:
        eta: the largest similarity of an edited token.
        smooth: erosion and dilation.
        aspect: height and width of the picture, where nothing else tells the grid of its tokens; None: unknown, and not smoothed there.
    """

    eta: float = 0.93
    smooth: bool = True
    aspect: tuple[int, int] | None = None

    def __call__(self, sight: Sight) -> Tensor:
        moving = sight.moving
        latent, sigma, earlier = sight.latent, sight.sigma, sight.sigma_before
        if latent.ndim != 3 or sigma is None or earlier is None or sigma == earlier:
            return moving
        own = moving[0]
        count = int(own.sum())
        references = latent[:, ~own]
        if count == 0 or references.shape[1] != count:
            return moving
        x = latent[:, own].float()
        velocity = (x - sight.before[:, own].float()) / (sigma - earlier)
        edited = edited_tokens(x - sigma * velocity, references, self.eta)
        grid = sight.grid or (None if self.aspect is None else (1, *grid_of(count, *self.aspect)))
        if self.smooth and grid is not None:
            edited = smoothed(edited, *grid[1:])
        chosen = torch.zeros_like(moving)
        chosen[:, own] = edited
        return chosen


@dataclass(frozen=True)
class FullCalls:
    """Which computed calls compute all tokens.

    Attributes:
        first: so many at the start of a run, at least one.
        every: one in so many of those after them.
        last: so many ticks at the end of a run.
        ticks: and these.
        reach: and those more than so many ticks after the newest of them; None: however far.
    """

    first: int = 1
    every: int | None = None
    last: int = 0
    ticks: tuple[int, ...] = ()
    reach: int | None = None

    def asks(self, tick: int, num_ticks: int | None, newest: int, since: int) -> bool:
        """Whether a computed call computes all tokens.

        Args:
            tick: of the call.
            num_ticks: length of the run; None where it is unknown.
            newest: tick of the newest call of all tokens.
            since: how many calls of some tokens there were after it.
        """
        tail = num_ticks is not None and tick >= num_ticks - self.last
        often = self.every is not None and since + 1 >= self.every
        far = self.reaches_not(tick, newest)
        return tick < self.first or tail or often or far or tick in self.ticks

    def reaches_not(self, tick: int, newest: int) -> bool:
        """Whether a tick is too far from the newest call of all tokens."""
        return self.reach is not None and tick - newest > self.reach


@dataclass(frozen=True)
class RowRule:
    """Some tokens only.

    Attributes:
        source: which tokens. It is asked once, at the first call that computes some.
        full: which calls compute all of them.
        order: the highest order of extrapolation of the other tokens; 0 holds them. The order is 0 where the last full call
            is further away than it is from the one before it: extrapolation errs there.
        holds: the other tokens' outputs stay what they were, as in RegionE, instead of what their hidden states give.
        most: above this share of the tokens all are computed.
    """

    source: Source
    full: FullCalls
    order: int = 1
    holds: bool = False
    most: float = MOST
