"""The walk of block-causal models: a block sees itself and what is before it."""

from itertools import pairwise

from torch import Tensor

from diffcache.language.cache import Rows
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.walks.base import Walk


class BlockWalk(Walk):
    """Makes final what lies before a new block, each part seeing no further than its own end; then the block.

    A full call makes all parts anew, one after the other. It takes its rows from the canvas, whatever it is asked for.
    """

    _ends: tuple[int, ...] = ()
    _final = 0

    def begin(self, canvas: Canvas, full: bool) -> None:
        start = max(canvas.block.start - self.net.token_shift, 0)
        self._block = slice(start, canvas.block.stop)
        self._ends = (*(end for end in self._ends if end < start), start)
        if full:
            self._final = 0

    def __call__(self, tokens: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        for start, stop in pairwise((0, *self._ends)):
            if stop > self._final:
                self.cache.resize(stop)
                super().__call__(tokens, slice(start, stop))
        self._final = self._block.start
        self.cache.resize(self._block.stop)
        return super().__call__(tokens, self._block)
