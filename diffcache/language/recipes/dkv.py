"""dKV-Cache (arXiv 2505.15781): a token's keys and values are kept from one call after it was written."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.sampler.canvas import Canvas
from diffcache.method_config import method
from diffcache.schedulers.errors import ConfigError

SHORT_BLOCK = 32
LONG_INTERVAL, LONG_AROUND = 8, 8
"""Of a window and of blocks that are longer than `SHORT_BLOCK`, where `interval` and `around` are left open."""


@method
@dataclass(frozen=True, kw_only=True)
class DKVDecodeConfig(LanguageConfig):
    """dKV-Cache-Decode. Computes masks, and the tokens that the call before has written (the one-step delay).

    Every token is kept from the first call in which it is computed. The authors keep nothing of a block's first call and so
    compute the second one in full as well; here the first is kept, and the second computes like the others.

    Attributes:
        interval: calls between two full ones, counted from the block's first (published: 8 for LLaDA, 4 for Dream). None: a
            block's first call alone; but every 8 calls where a window moves, or the block has more than 32 tokens.
        ahead: compute masks also where nothing may be written yet, behind the block or the window (published). Without
            them the cache keeps what Fast-dLLM's dual cache keeps (arXiv 2505.22618), and written tokens besides.
        around: also compute positions that are no farther from one that may be written, as dInfer's vicinity refresh
            does around a block (arXiv 2510.08666). Tokens that were written while their neighbours were masks are so brought
            up to date. None: the whole block, as Fast-dLLM's dual cache; but 8 where a window moves, or the block has more
            than 32 tokens.
    """

    name: ClassVar[str] = "dkv-decode"

    interval: int | None = 8
    ahead: bool = True
    around: int | None = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("interval", 1, whole=True)
        self._check("around", 0, whole=True)
        self._choose("ahead", True, False)

    def full(self, canvas: Canvas) -> bool:
        if self.interval is None and _writes_short_block(canvas):
            return canvas.block_step == 0
        return canvas.block_step % (self.interval or LONG_INTERVAL) == 0

    def rows(self, canvas: Canvas) -> slice | Tensor:
        if self.around is None and _writes_short_block(canvas):
            block = slice(canvas.block.start, canvas.block.stop)
            return canvas.masked | canvas.in_block if self.ahead else block
        rows = (canvas.masked if self.ahead else canvas.candidates) | canvas.dirty
        around = LONG_AROUND if self.around is None else self.around
        return within(canvas.candidates, around) | rows if around else rows


def _writes_short_block(canvas: Canvas) -> bool:
    return canvas.window is None and len(canvas.block) <= SHORT_BLOCK


@method
@dataclass(frozen=True, kw_only=True)
class DKVGreedyConfig(LanguageConfig):
    """dKV-Cache-Greedy. Computes what is written next, what was written last, and a few masks around it.

    It has to know the next positions before the model is asked: generate with `remasking="random"` and a fixed quota.

    Attributes:
        interval: calls between two full ones (published: 2).
        window: masks nearest to each next position that are computed with it (published: 4). Windows do not share masks.
    """

    name: ClassVar[str] = "dkv-greedy"

    interval: int = 2
    window: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("interval", 1, whole=True)
        self._check("window", 0, whole=True)

    def full(self, canvas: Canvas) -> bool:
        return canvas.block_step % self.interval == 0

    def rows(self, canvas: Canvas) -> Tensor:
        if canvas.upcoming is None:
            raise ConfigError(
                'dkv-greedy must know the next positions: generate with remasking="random", and without threshold '
                "and factor."
            )
        computed = among(canvas.upcoming, canvas.length) | canvas.dirty
        for position in canvas.upcoming.T[
            ..., None
        ]:  # in order: a later window leaves out what an earlier one has
            computed = computed | nearest(canvas.masked & ~computed, position, self.window)
        return computed


@method
@dataclass(frozen=True, kw_only=True)
class DKVPrefillConfig(LanguageConfig):
    """dKV-Cache-Prefill, and -PD where `interval` is given: the prompt is computed once and never again.

    Attributes:
        interval: None computes the whole answer at every call (Prefill). A number computes the answer so often, and
            masks and the tokens just written at other calls (PD; published: 4).
    """

    name: ClassVar[str] = "dkv-prefill"

    interval: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("interval", 1, whole=True)

    def full(self, canvas: Canvas) -> bool:
        return False

    def rows(self, canvas: Canvas) -> slice | Tensor:
        if self.interval is None or canvas.block_step % self.interval == 0:
            return slice(canvas.prompt, canvas.length)
        return (canvas.masked | canvas.dirty) & (canvas.positions >= canvas.prompt)


def among(positions: Tensor, length: int) -> Tensor:
    """Bool [b, length]: what is one of these positions [b, q]; -1 is none."""
    found = positions.new_zeros(len(positions), length + 1, dtype=torch.bool)
    return found.scatter_(1, positions % (length + 1), True)[:, :length]


def within(targets: Tensor, distance: int) -> Tensor:
    """Bool [b, S]: positions that are no farther than `distance` from one of `targets` [b, S]."""
    near = max_pool1d(targets.float()[:, None], 2 * distance + 1, stride=1, padding=distance)
    return near[:, 0] > 0


def nearest(among: Tensor, position: Tensor, count: int) -> Tensor:
    """Bool [b, S]: of the positions `among` [b, S], the `count` that are nearest to `position` [b, 1], the left one first.

    None where the position is -1.
    """
    away = torch.arange(among.shape[1], device=among.device) - position
    distance = torch.where(among, 2 * away.abs() + (away > 0), 2 * among.shape[1])
    order = distance.topk(min(count, among.shape[1]), dim=1, largest=False).indices
    return torch.zeros_like(among).scatter(1, order, True) & among & (position >= 0)
