"""Walk: one model call through the cache, for some rows."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from diffcache.language.backbones.base import Backbone, Net, Rotary, outside_inference_mode
from diffcache.language.backbones.rotation import kernel_tables
from diffcache.language.cache import Rows, TokenKVCache, take
from diffcache.language.report import LanguageReport
from diffcache.language.sampler.canvas import Canvas


class Walk(ABC):
    """Computes some rows, which attend everything: their keys and values are new, all others are as they were stored.

    There is one for each run.

    Attributes:
        wanted_rows: bool [b, S], rows that the next call should compute besides the method's; None for none.
        asked: a number int64 [] that the next call needs from the device, where it is read with others; None for none.
        told: what was read of it; None where nothing was asked.
    """

    def __init__(self, net: Net, cache: TokenKVCache, report: LanguageReport) -> None:
        self.cache = cache
        self.report = report
        self.token_shift = net.token_shift
        self.wanted_rows: Tensor | None = None
        self.asked: Tensor | None = None
        self.told: int | None = None

    @abstractmethod
    def __call__(self, canvas: Canvas, rows: Rows, full: bool) -> tuple[Tensor, Rows]:
        """Computes rows of the canvas's tokens, in the order of `block_last`.

        Args:
            full: these are all rows, and every layer computes them all.

        Returns:
            Logits [b, m, V], and the positions that they predict: what was asked for of the block, each position once; S
            where a row predicts nothing that is wanted.
        """

    def tokens_of(self, canvas: Canvas, rows: Rows) -> Tensor:
        """The tokens [b, n] of rows. The cache notes that they are computed from these."""
        asked = take(canvas.tokens, rows)
        self.cache.note_tokens(rows, asked)
        return asked


class LayerWalk(Walk):
    """Goes through the layers one by one, through the model's parts. Methods that look into layers override `through_layers`."""

    def __init__(self, net: Backbone, cache: TokenKVCache, report: LanguageReport) -> None:
        super().__init__(net, cache, report)
        self.net = net
        own = outside_inference_mode(net.rotary)(cache.capacity, cache.real.device)
        for_kernel = kernel_tables(net, own)
        self._tables = for_kernel or own
        self._kernel_rotates = for_kernel is not None

    def __call__(self, canvas: Canvas, rows: Rows, full: bool) -> tuple[Tensor, Rows]:
        hidden, rows = self.through_layers(canvas, rows, full)
        kept, predicted = predicted_by(canvas, rows, self.token_shift)
        self.report.count_logits(kept.stop - kept.start)
        return self.net.logits(hidden[:, kept]), predicted

    def through_layers(self, canvas: Canvas, rows: Rows, full: bool) -> tuple[Tensor, Rows]:
        """The last layer's output [b, n, width], and the rows that it stands for: those asked for, or all."""
        hidden, rotary, mask = self.embed(canvas, rows), self.rotary(rows), self.cache.mask(rows)
        for layer in range(len(self.net.layers)):
            hidden = self.layer(layer, hidden, rows, rotary, mask)
        return hidden, rows

    def embed(self, canvas: Canvas, rows: Rows) -> Tensor:
        """Rows as hidden states [b, n, width]."""
        return self.net.embed(self.tokens_of(canvas, rows))

    def layer(self, layer: int, hidden: Tensor, rows: Rows, rotary: Rotary, mask: Tensor | None) -> Tensor:
        """One layer's output for these rows."""
        queries = self.write(layer, rows, rotary, *self.net.project(layer, hidden))
        return self.attend(layer, hidden, queries, mask)

    def attend(self, layer: int, hidden: Tensor, queries: Tensor, mask: Tensor | None) -> Tensor:
        """One layer's output from its input [b, n, width], whose rotated queries attend all stored keys."""
        self.report.count_layer(hidden.shape[1], self.cache.length)
        attended = self.net.attend(queries, *self.cache.read(layer), mask)
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


def block_last(rows: Tensor, canvas: Canvas, shift: int) -> Tensor:
    """Rows [b, n], ascending, with those last that predict positions of the block; a row that repeats another comes first."""
    if rows.shape[1] <= len(canvas.block):
        return rows
    order = _predicts(rows, canvas, shift).int().argsort(dim=1, stable=True)
    return rows.gather(1, order)


def predicted_by(canvas: Canvas, rows: Rows, shift: int) -> tuple[slice, Rows]:
    """Which of the rows predict positions of the block, as a range over them; and those positions, S for none."""
    size = len(canvas.block)
    first = max(canvas.block.start - shift, 0)
    if isinstance(rows, slice):
        return slice(first - rows.start, first - rows.start + size), slice(
            first + shift, first + shift + size
        )
    kept = slice(max(rows.shape[1] - size, 0), rows.shape[1])
    last = rows[:, kept]
    return kept, torch.where(_predicts(last, canvas, shift), last + shift, canvas.length)


def _predicts(rows: Tensor, canvas: Canvas, shift: int) -> Tensor:
    """Bool [b, n]: the row predicts a position of the block, and is not repeated by the row behind it."""
    again = torch.zeros_like(rows, dtype=torch.bool)
    again[:, :-1] = rows[:, :-1] == rows[:, 1:]
    return (rows + shift >= canvas.block.start) & (rows + shift < canvas.block.stop) & ~again
