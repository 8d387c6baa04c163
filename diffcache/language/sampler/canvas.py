"""Canvas: a batch of texts that are being written, and what a method may know of them."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass
class Canvas:
    """Sizes: b texts, S positions, of which the first `prompt` are given.

    Tokens change through `rewrite`, and the block through `enter`: what follows from them is computed once and kept.

    Attributes:
        tokens: int64 [b, S].
        prompt: positions before it are never written.
        mask_id: the token that stands for 'not written yet'.
        block: the range that is being written; `range(prompt, S)` without blocks.
        step: model calls so far; `block_step`: those since the block began.
        limit: int64 [b, 1], the position of a text's first EOS; S where there is none. Nothing is written after it.
        window: only the first so many masked positions of a text are candidates; None for all.
        dirty: bool [b, S], positions that were computed from another token than stands there now; set by the session.
        upcoming: int64 [b, q], positions that are committed next, in order and -1 behind the last, where that is known
            before the model is asked.
        edited: tokens were changed since the last call by somebody else than the sampler.
        reads_whole_block: the sampler looks at the whole block, written or not, because it may edit.
        attention_block: positions see nothing behind their block of so many, counted from 0; None: everything.
        unfinished: from here to the block's end, positions were computed before what they see was written; set by the session.
    """

    tokens: Tensor
    prompt: int
    mask_id: int
    block: range
    limit: Tensor
    dirty: Tensor
    window: int | None = None
    step: int = 0
    block_step: int = 0
    upcoming: Tensor | None = None
    edited: bool = False
    reads_whole_block: bool = False
    attention_block: int | None = None
    unfinished: int = 0

    @classmethod
    def of_prompts(cls, input_ids: Tensor, length: int, mask_id: int, window: int | None = None) -> "Canvas":
        """The prompts [b, P] with `length` masks behind them."""
        batch, prompt = input_ids.shape
        masks = input_ids.new_full((batch, length), mask_id)
        tokens = torch.cat([input_ids, masks], dim=1)
        size = tokens.shape[1]
        limit = input_ids.new_full((batch, 1), size)
        everything = torch.ones_like(tokens, dtype=torch.bool)
        return cls(tokens, prompt, mask_id, range(prompt, size), limit, everything, window)

    def of_tokens(self, tokens: Tensor, limit: Tensor) -> "Canvas":
        """A canvas of other texts [c, S] that are written in the same way."""
        everything = torch.ones_like(tokens, dtype=torch.bool)
        return Canvas(
            tokens,
            self.prompt,
            self.mask_id,
            self.block,
            limit,
            everything,
            self.window,
            reads_whole_block=self.reads_whole_block,
            attention_block=self.attention_block,
        )

    @property
    def length(self) -> int:
        return self.tokens.shape[1]

    @property
    def shown(self) -> int:
        """So many positions the model sees where it attends in blocks: those to the end of the block that holds `block`."""
        size = self.attention_block or 1
        return min(-(-self.block.stop // size) * size, self.length)

    @cached_property
    def positions(self) -> Tensor:
        return torch.arange(self.length, device=self.tokens.device)

    @cached_property
    def masked(self) -> Tensor:
        """Bool [b, S]: still to be written."""
        return (self.tokens == self.mask_id) & self._answer & (self.positions < self.limit)

    @cached_property
    def candidates(self) -> Tensor:
        """Bool [b, S]: what may be committed now."""
        found = self.masked & self._reached
        return found if self.window is None else first(found, self.window)

    @cached_property
    def in_block(self) -> Tensor:
        """Bool [S]: in the block that is being written."""
        return self._reached & (self.positions >= self.block.start)

    @cached_property
    def _answer(self) -> Tensor:
        return self.positions >= self.prompt

    @cached_property
    def _reached(self) -> Tensor:
        return self.positions < self.block.stop

    def enter(self, block: range) -> None:
        """Begins the next block, maybe in a text that has grown."""
        self.block, self.block_step = block, 0
        self._forget("positions", "masked", "candidates", "in_block", "_answer", "_reached")

    def rewrite(self, tokens: Tensor, limit: Tensor | None = None) -> None:
        """Puts tokens [b, S] in place of those that stood there; nothing is written after `limit` [b, 1] (None: as before)."""
        self.tokens = tokens
        self.limit = self.limit if limit is None else limit
        self._forget("masked", "candidates")

    def advance(self) -> None:
        """Ends a model call."""
        self.step += 1
        self.block_step += 1
        self.edited = False

    def _forget(self, *names: str) -> None:
        for name in names:
            self.__dict__.pop(name, None)


def first(wanted: Tensor, count: int) -> Tensor:
    """Bool [b, S]: in each row of `wanted` [b, S] the first `count` positions where it is True."""
    return wanted & (wanted.cumsum(dim=1) <= count)
