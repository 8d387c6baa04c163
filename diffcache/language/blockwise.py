"""The walk of block-causal models: a block sees itself and what is before it."""

from torch import Tensor

from diffcache.language.cache import Rows
from diffcache.language.walk import Walk


class BlockWalk(Walk):
    """Makes final what lies before a new block, each part seeing no further than its own end; then the block."""

    _final = 0

    def __call__(self, tokens: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        assert isinstance(rows, slice)
        if self._final < rows.start:
            self.cache.resize(rows.start)
            super().__call__(tokens, slice(self._final, rows.start))
            self._final = rows.start
        self.cache.resize(rows.stop)
        return super().__call__(tokens, rows)
