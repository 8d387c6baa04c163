"""Session: the cached state of one run, and the model calls that go through it."""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from diffcache.language.backbones.base import Backbone, outside_inference_mode
from diffcache.language.cache import Rows, TokenKVCache, rows_of, take
from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.report import LanguageReport
from diffcache.language.sampler.canvas import Canvas


class ModelCaller(Protocol):
    """How a sampler asks the model.

    Attributes:
        report: of the run.
    """

    report: LanguageReport

    def logits(self, canvas: Canvas) -> tuple[Tensor, Rows]:
        """Logits [b, m, V], and the positions that they predict: all candidates at least, each once; S for no position."""


class PlainCaller:
    """The model's own forward, without any cache.

    Args:
        net: the model's parts.
        real: bool [b, S], False at padding.
    """

    def __init__(self, net: Backbone, real: Tensor) -> None:
        self.net = net
        self.report = LanguageReport.of_run("plain", {}, net, len(real))
        self._real = None if bool(real.all()) else real

    def logits(self, canvas: Canvas) -> tuple[Tensor, Rows]:
        with self.report.counting_call(canvas.length):
            for _ in self.net.layers:
                self.report.count_layer(canvas.length, canvas.length)
            logits = outside_inference_mode(self.net.call)(canvas.tokens, self._real)
            self.report.count_logits(canvas.length)
        predicted = slice(canvas.block.start, canvas.block.stop)
        first = max(predicted.start - self.net.token_shift, 0)
        return logits[:, first : first + len(canvas.block)], predicted


class Session:
    """One run through the cache.

    Args:
        net: the model's parts.
        config: the method.
        real: bool [b, C], False at padding; C is the longest that the text may become.
    """

    def __init__(self, net: Backbone, config: LanguageConfig, real: Tensor) -> None:
        self.net = net
        self.config = config
        self.report = LanguageReport.of_run(config.name, config.options(), net, len(real))
        self.cache = TokenKVCache(
            len(net.layers), net.kv_heads, net.head_dim, real, dtype=net.dtype, features=config.features(net)
        )
        self.report.cache_bytes = self.cache.nbytes
        self.walk = config.walk(net, self.cache, self.report)
        self._reuses = 0

    def logits(self, canvas: Canvas) -> tuple[Tensor, Rows]:
        grown = canvas.length != self.cache.length
        self.cache.resize(canvas.length)
        canvas.dirty = self.cache.dirty(canvas.tokens)
        full = self.config.forces_full(canvas, self._reuses, grown) or self.config.full(canvas)
        self._reuses = 0 if full else self._reuses + 1
        with self.report.counting_call(canvas.length):
            asked = slice(0, canvas.length) if full else self._rows(canvas)
            hidden, rows = self.walk(canvas, asked, full)
            hidden, predicted = self._predicted(canvas, hidden, rows)
            self.report.count_logits(hidden.shape[1])
        return self.net.logits(hidden), predicted

    def _rows(self, canvas: Canvas) -> Rows:
        """The rows that the method asks for, and those that it must not leave out."""
        rows = self.config.rows(canvas)
        if isinstance(rows, slice):
            if not canvas.edited:
                return slice(max(rows.start - self.net.token_shift, 0), rows.stop)
            rows = _as_mask(rows, canvas)
        if canvas.edited:
            rows = rows | canvas.dirty
        if canvas.reads_whole_block:
            rows = rows | canvas.in_block
        if self.walk.wanted_rows is not None:
            rows = rows | self.walk.wanted_rows
        if self.net.token_shift:
            rows = rows | pad(canvas.candidates[:, 1:], (0, 1))
        return rows_of(rows)

    def _predicted(self, canvas: Canvas, hidden: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        """The rows of `hidden` whose logits are wanted, and which positions they predict; S for none of the text's."""
        shift, size = self.net.token_shift, len(canvas.block)
        first = max(canvas.block.start - shift, 0)
        if isinstance(rows, slice):
            return hidden.narrow(1, first - rows.start, size), slice(first + shift, first + shift + size)
        if rows.shape[1] < size and not canvas.reads_whole_block:
            again = pad(rows[:, :-1] == rows[:, 1:], (0, 1))  # a position is drawn once
            return hidden, torch.where(again, canvas.length, (rows + shift).clamp(max=canvas.length))
        asked = torch.arange(first, first + size, device=rows.device).repeat(len(rows), 1)
        index = torch.searchsorted(rows, asked).clamp_(max=rows.shape[1] - 1)  # rows ascend
        predicted = torch.where(rows.gather(1, index) == asked, asked + shift, canvas.length)
        return take(hidden, index), predicted


def _as_mask(rows: slice, canvas: Canvas) -> Tensor:
    """A range as bool [b, S]."""
    inside: Tensor = (canvas.positions >= rows.start) & (canvas.positions < rows.stop)
    return inside.expand_as(canvas.tokens)
