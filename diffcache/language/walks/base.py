"""Walk: one model call through the cache, for some rows, layer by layer."""

from torch import Tensor

from diffcache.language.backbones.base import Backbone, Rotary, kept_usable
from diffcache.language.backbones.rotation import kernel_tables
from diffcache.language.cache import Rows, TokenKVCache, take
from diffcache.language.ledger import Ledger
from diffcache.language.sampler.canvas import Canvas


class Walk:
    """Computes rows and attends everything: their keys and values are new, all others are as they were stored.

    One serves one run. Methods that look into layers override `begin` and `run`.
    """

    extra: Tensor | None = None
    """Bool [b, S]: rows that it wants computed besides the method's; None for none."""

    def __init__(self, net: Backbone, cache: TokenKVCache, ledger: Ledger) -> None:
        self.net = net
        self.cache = cache
        self.ledger = ledger
        own = kept_usable(net.rotary)(cache.capacity, cache.real.device)
        for_kernel = kernel_tables(net, own)
        self._tables = for_kernel or own
        self._kernel_rotates = for_kernel is not None

    def begin(self, canvas: Canvas, full: bool) -> None:
        """The next call is about this canvas, and computes everything if `full`."""

    def __call__(self, tokens: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        """Computes rows of `tokens` [b, S].

        Returns:
            The last layer's output [b, n, width], and the rows that it stands for: those asked for, or more.
        """
        asked = take(tokens, rows)
        self.cache.stamp(rows, asked)
        return self.run(self.net.embed(asked), rows)

    def run(self, hidden: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        """All layers, from embedded rows [b, n, width] on."""
        rotary, mask = self.rotary(rows), self.cache.mask()
        for layer in range(len(self.net.layers)):
            hidden = self.layer(layer, hidden, rows, rotary, mask)
        return hidden, rows

    def layer(self, layer: int, hidden: Tensor, rows: Rows, rotary: Rotary, mask: Tensor | None) -> Tensor:
        """One layer's output for these rows."""
        queries = self.write(layer, rows, rotary, *self.net.project(layer, hidden))
        self.ledger.computed(hidden.shape[1], self.cache.length)
        attended = self.net.attend(layer, queries, *self.cache.read(layer), mask)
        return self.net.finish(layer, hidden, attended)

    def write(
        self, layer: int, rows: Rows, rotary: Rotary, queries: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Stores these rows' keys, rotated, and values; returns rotated queries."""
        if self._kernel_rotates:
            return self.cache.rotate_and_write(layer, rows, rotary, queries, keys, values)
        queries, keys = self.net.rotate(queries, keys, rotary)
        self.cache.write(layer, rows, keys, values)
        return queries

    def rotary(self, rows: Rows) -> Rotary:
        """Cosine and sine of rows, [1 or b, n, ...] each."""
        cos, sin = self._tables
        if isinstance(rows, slice):
            return cos[:, rows], sin[:, rows]
        return cos[0, rows], sin[0, rows]

    def everything(self) -> slice:
        """All rows of the text."""
        return slice(0, self.cache.length)
