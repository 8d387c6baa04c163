"""Session: the cached state of one run, and the model calls that go through it."""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.modules.dropout import _DropoutNd

from diffcache.host.compiled import is_compiled, uncompiled
from diffcache.language.backbones.base import Net, outside_inference_mode
from diffcache.language.cache import Rows, TokenKVCache, rows_of
from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.report import LanguageReport
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.walks.base import block_last
from diffcache.schedulers.errors import ConfigError, TargetError
from diffcache.schedulers.numbers_given import is_number

SIZES = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Rows of a call of a compiled model are filled up to the next of these, with rows that repeat the last.

Each new size costs a compilation, and a recording where its graphs are CUDA graphs.
"""


@dataclass(frozen=True)
class CallPlan:
    """What a model call will compute.

    Attributes:
        text: what the model is shown.
        full: every row.
        rows: a range, or bool [b, S].
        asked: what only the device knows, int64 [1 or 2]: the most rows of a text, and what the walk asks; None for nothing.
    """

    text: Canvas
    full: bool
    rows: slice | Tensor
    asked: Tensor | None = None


class ModelCaller(Protocol):
    """How a sampler asks the model.

    Attributes:
        report: of the run.
    """

    report: LanguageReport

    def plan(self, canvas: Canvas) -> CallPlan:
        """What the next call will compute. What it asks may be read from the device together with other numbers."""

    def logits(
        self, canvas: Canvas, plan: CallPlan | None = None, told: list[int] | None = None
    ) -> tuple[Tensor, Rows]:
        """Logits [b, m, V], and the positions that they predict: all candidates at least, each once; S for no position.

        Args:
            plan: of this call; None plans it.
            told: what the plan has asked, read from the device; None reads it.
        """


class PlainCaller:
    """The model's own forward, without any cache.

    Args:
        net: the model.
        real: bool [b, S], False at padding.
    """

    def __init__(self, net: Net, real: Tensor) -> None:
        self.net = net
        self.report = LanguageReport.of_run("plain", {}, net, len(real))
        self._real = None if bool(real.all()) else real

    def plan(self, canvas: Canvas) -> CallPlan:
        return CallPlan(canvas, True, slice(0, canvas.length))

    def logits(
        self, canvas: Canvas, plan: CallPlan | None = None, told: list[int] | None = None
    ) -> tuple[Tensor, Rows]:
        tokens, real, block = canvas.tokens, self._real, canvas.attention_block
        if block is not None:  # nothing in front sees what is behind the block
            tokens = tokens[:, : canvas.shown]
            real = None if real is None else real[:, : canvas.shown]
            check_padding(real, block)
        length = tokens.shape[1]
        with self.report.counting_call(length, length):  # its own forward has logits of every row
            for _ in self.net.layers:
                self.report.count_layer(length, length)
            logits = outside_inference_mode(self.net.call)(tokens, real, block)
            self.report.count_logits(length)
        predicted = slice(canvas.block.start, canvas.block.stop)
        first = max(predicted.start - self.net.token_shift, 0)
        return logits[:, first : first + len(canvas.block)], predicted


class Session:
    """One run through the cache.

    Args:
        net: the model.
        config: the method.
        real: bool [b, C], False at padding; C is the longest that the text may become.

    Raises:
        TargetError: a model in training mode with dropout; a method that looks into layers, and a model whose parts are not known; a text
            longer than what the model attends.
    """

    def __init__(self, net: Net, config: LanguageConfig, real: Tensor) -> None:
        check_mode(net.model)
        self.net = net
        self.config = config
        self.report = LanguageReport.of_run(config.name, config.options(), net, len(real))
        features = config.features(net)
        self.cache = TokenKVCache(len(net.layers), real, dtype=net.dtype, features=features)
        self.walk = config.walk(net, self.cache, self.report)
        self._fixes_sizes = is_compiled(net.model)
        self._reuses = 0
        self._block: range | None = None
        self._start = 0  # where the block before that one begins to be attended as a whole

    def plan(self, canvas: Canvas) -> CallPlan:
        text = self._shown(canvas)
        grown = text.length != self.cache.length
        self.cache.resize(text.length)
        text.dirty = self.cache.dirty(text.tokens)
        if self.config.forces_full(text, self._reuses, grown) or self.config.full(text):
            return CallPlan(text, True, slice(0, text.length))
        rows = self._rows(text)
        if isinstance(rows, slice):
            return CallPlan(text, False, rows)
        asked = [rows.sum(dim=1).amax(), *([] if self.walk.asked is None else [self.walk.asked])]
        return CallPlan(text, False, rows, torch.stack(asked))

    def logits(
        self, canvas: Canvas, plan: CallPlan | None = None, told: list[int] | None = None
    ) -> tuple[Tensor, Rows]:
        plan = self.plan(canvas) if plan is None else plan
        text, rows = plan.text, plan.rows
        self._reuses = 0 if plan.full else self._reuses + 1
        if told is None:
            told = [] if plan.asked is None else plan.asked.tolist()
        count, self.walk.told = (*told, None, None)[:2]
        if not plan.full and self._fixes_sizes:
            rows = self._of_fixed_size(rows, count)
        elif isinstance(rows, Tensor):
            rows = rows_of(rows, count)
        if isinstance(rows, Tensor):
            rows = block_last(rows, text, self.net.token_shift)
        plain_length = canvas.length if canvas.attention_block is None else text.length
        with self.report.counting_call(plain_length, len(canvas.block)):
            found = self.walk(text, rows, plan.full)
        self.report.cache_bytes = self.report.cache_bytes or self.cache.nbytes
        return found

    def _of_fixed_size(self, rows: slice | Tensor, count: int | None) -> Tensor:
        """Rows as lists of one of a few lengths, so that a compiled model has one graph for each, whatever the block is."""
        if isinstance(rows, slice):
            every = torch.arange(rows.start, rows.stop, device=self.cache.real.device)
            return every.expand(len(self.cache.real), -1)
        return rows_of(
            rows, next((size for size in SIZES if count is not None and size >= count), rows.shape[1])
        )

    def _shown(self, canvas: Canvas) -> Canvas:
        """What the model is shown. Where texts are attended in blocks, this ends with one, and tells the cache of it."""
        size, block = canvas.attention_block, canvas.block
        if size is None and not self.config.imposes_blocks:
            return canvas
        start = block.start if size is None else block.start // size * size
        unfinished = start
        if block != self._block:
            unfinished, self._start, self._block = min(self._start, start), start, block
            if size is None:
                self.cache.see_no_further(start, block.stop)
            else:
                self._check_blocks(size, start)
                self.cache.see_in_blocks(size, canvas.shown)
        return replace(canvas, tokens=canvas.tokens[:, : canvas.shown], unfinished=unfinished)

    def _check_blocks(self, size: int, start: int) -> None:
        if self.config.whole_text:
            raise TargetError(
                f"{self.config.name} measures attention over the whole text, and {type(self.net.model).__name__} attends "
                "in blocks: choose block-causal, which is exact there."
            )
        check_padding(self.cache.real[:, :start], size)

    def _rows(self, canvas: Canvas) -> slice | Tensor:
        """The rows that the method asks for, and those that it must not leave out: a range, or bool [b, S]."""
        shift = self.net.token_shift
        rows = self.config.rows(canvas)
        if isinstance(rows, slice):
            if not canvas.edited:
                return slice(max(rows.start - shift, 0), rows.stop)
            rows = _as_mask(rows, canvas)
        if canvas.edited:
            rows = rows | canvas.dirty
        if canvas.reads_whole_block:
            rows = rows | canvas.in_block
        if self.walk.wanted_rows is not None:
            rows = rows | self.walk.wanted_rows
        if shift:
            rows = rows | pad(canvas.candidates[:, 1:], (0, 1))
        return rows


def check_mode(model: Any) -> None:
    """Checks that the model's calls do not each drop something else.

    Raises:
        TargetError: it is in training mode, and has dropout.
    """
    own = uncompiled(model)
    if own.training and _drops(own):
        raise TargetError(
            f"{type(own).__name__} is in training mode, where each call may drop something else and nothing can be reused: call "
            "model.eval() first."
        )


def _drops(model: Any) -> bool:
    """Whether a model has dropout: modules of its own for that, or shares in its configuration, which attention may read."""
    shares = [value for name, value in vars(model.config).items() if "dropout" in name]
    modules = [module.p for module in model.modules() if isinstance(module, _DropoutNd)]
    return any(is_number(share) and share > 0 for share in (*shares, *modules))


def check_padding(real: Tensor | None, block: int) -> None:
    """Checks that blocks of so many tokens, counted from position 0, are those of each text behind its padding.

    Args:
        real: bool [b, S], False at padding; None for none.

    Raises:
        ConfigError: padding that shifts the blocks.
    """
    if real is not None and bool(((~real).sum(dim=1) % block).any()):
        raise ConfigError(
            f"the model attends in blocks of {block} tokens, counted from a text's first token, and padding shifts them: give "
            f"prompts of one length, or pad each on the left by a multiple of {block}."
        )


def _as_mask(rows: slice, canvas: Canvas) -> Tensor:
    """A range as bool [b, S]."""
    inside: Tensor = (canvas.positions >= rows.start) & (canvas.positions < rows.stop)
    return inside.expand_as(canvas.tokens)
