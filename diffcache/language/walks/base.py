"""Walk: one model call through the cache, for some rows, layer by layer."""

from torch import Tensor

from diffcache.language.backbones.base import Backbone, Rotary, outside_inference_mode
from diffcache.language.backbones.rotation import kernel_tables
from diffcache.language.cache import Rows, TokenKVCache, take
from diffcache.language.report import LanguageReport
from diffcache.language.sampler.canvas import Canvas


class Walk:
    """Computes some rows, which attend everything: their keys and values are new, all others are as they were stored.

    There is one for each run. Methods that look into layers override `__call__`.

    Attributes:
        wanted_rows: bool [b, S], rows that the next call should compute besides the method's; None for none.
    """

    def __init__(self, net: Backbone, cache: TokenKVCache, report: LanguageReport) -> None:
        self.net = net
        self.cache = cache
        self.report = report
        self.wanted_rows: Tensor | None = None
        own = outside_inference_mode(net.rotary)(cache.capacity, cache.real.device)
        for_kernel = kernel_tables(net, own)
        self._tables = for_kernel or own
        self._kernel_rotates = for_kernel is not None

    def __call__(self, canvas: Canvas, rows: Rows, full: bool) -> tuple[Tensor, Rows]:
        """Computes rows of the canvas's tokens.

        Args:
            full: these are all rows, and every layer computes them all.

        Returns:
            The last layer's output [b, n, width], and the rows that it stands for: those asked for, or more.
        """
        return self.through_layers(self.embed(canvas.tokens, rows), rows), rows

    def embed(self, tokens: Tensor, rows: Rows) -> Tensor:
        """Rows of `tokens` [b, S] as hidden states [b, n, width]. The cache notes which tokens they are computed from."""
        asked = take(tokens, rows)
        self.cache.note_tokens(rows, asked)
        return self.net.embed(asked)

    def through_layers(self, hidden: Tensor, rows: Rows) -> Tensor:
        """The last layer's output from embedded rows [b, n, width]."""
        rotary, mask = self.rotary(rows), self.cache.mask()
        for layer in range(len(self.net.layers)):
            hidden = self.layer(layer, hidden, rows, rotary, mask)
        return hidden

    def layer(self, layer: int, hidden: Tensor, rows: Rows, rotary: Rotary, mask: Tensor | None) -> Tensor:
        """One layer's output for these rows."""
        queries = self.write(layer, rows, rotary, *self.net.project(layer, hidden))
        return self.attend(layer, hidden, queries, mask)

    def attend(self, layer: int, hidden: Tensor, queries: Tensor, mask: Tensor | None) -> Tensor:
        """One layer's output from its input [b, n, width], whose rotated queries attend all stored keys."""
        self.report.count_layer(hidden.shape[1], self.cache.length)
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

    def all_rows(self) -> slice:
        """All rows of the text."""
        return slice(0, self.cache.length)
