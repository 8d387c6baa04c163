"""The walk of block-causal models: a block sees itself and what is before it."""

from itertools import pairwise

from torch import Tensor

from diffcache.language.backbones.base import Backbone
from diffcache.language.cache import Rows, TokenKVCache
from diffcache.language.report import LanguageReport
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.walks.base import Walk


class BlockWalk(Walk):
    """Computes each part before the block once, seeing nothing behind its own end, and the block at every call.

    A full call computes all parts again, one after the other. The canvas says which rows that are, whatever is asked for.
    """

    def __init__(self, net: Backbone, cache: TokenKVCache, report: LanguageReport) -> None:
        super().__init__(net, cache, report)
        self._ends: tuple[int, ...] = ()
        self._final = 0  # the positions before it are computed

    def __call__(self, canvas: Canvas, rows: Rows, full: bool) -> tuple[Tensor, Rows]:
        block = slice(max(canvas.block.start - self.net.token_shift, 0), canvas.block.stop)
        self._ends = (*(end for end in self._ends if end < block.start), block.start)
        for start, stop in pairwise((0, *self._ends)):
            if stop > (0 if full else self._final):
                self._compute(canvas.tokens, slice(start, stop))
        self._final = block.start
        return self._compute(canvas.tokens, block), block

    def _compute(self, tokens: Tensor, part: slice) -> Tensor:
        """A part's output; it attends nothing behind itself."""
        self.cache.resize(part.stop)
        return self.through_layers(self.embed(tokens, part), part)
