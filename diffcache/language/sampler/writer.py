"""Writer: a batch of texts being written, one model call after the other."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from diffcache.language.cache import Rows
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.sampler.decoding import Rule, draw, quota, ranks
from diffcache.language.session import Caller
from diffcache.schedulers.errors import TargetError


@dataclass
class Writer:
    """Asks the model, chooses, commits. Sizes: b texts, S positions.

    Attributes:
        caller: how the model is asked.
        canvas: the texts.
        rule: which candidates are committed.
        temperature, generator: of the draw.
        order: [b, S], candidates with larger numbers are committed first; None for the surest.
        eos: tokens behind whose first nothing is written, int64 [0 or more].
    """

    caller: Caller
    canvas: Canvas
    rule: Rule
    temperature: float
    generator: torch.Generator | None
    order: Tensor | None
    eos: Tensor

    def enter(self, block: range, steps: int) -> None:
        """Begins a block, for which a quota counts so many steps."""
        self.canvas.enter(block)
        begun = self.canvas.masked & (self.canvas.positions < block.stop)
        self._quotas = quota(begun, torch.arange(steps + 1, device=begun.device), steps)

    def step(self) -> Tensor:
        """One model call.

        Returns:
            Bool [b, S]: what was written.

        Raises:
            TargetError: the call says nothing about what may be written.
        """
        canvas = self.canvas
        at = min(canvas.block_step, self._quotas.shape[1] - 1)
        asked = self._quotas[:, at : at + 1]
        if self.order is not None:
            first = ranks(self.order.masked_fill(~canvas.candidates, -1)) < asked
            canvas.upcoming = canvas.candidates & first
        tokens, sure = self._guess()
        askable = canvas.candidates & (sure >= 0)  # neither -inf nor NaN
        confidence = torch.where(askable, sure if self.order is None else self.order, -torch.inf)
        commit = askable & self.rule.commit(confidence, asked)
        if not bool(commit.any()):
            raise TargetError(
                "no position that may be written got a probability, so the text would never end: let the "
                "method's rows() hold all of canvas.candidates, and look for NaN in the model's logits."
            )
        self._put(torch.where(commit, tokens, canvas.tokens))
        canvas.advance()
        return commit

    def replace(self, tokens: Tensor) -> None:
        """Puts tokens [b, S] of somebody else's in place of the texts.

        A mask where something had been written is written again; before the block, the block begins anew from there.
        """
        canvas = self.canvas
        canvas.edited = not torch.equal(tokens, canvas.tokens)
        self._put(tokens)
        missing = canvas.masked.any(dim=0) & (canvas.positions < canvas.block.start)
        if bool(missing.any()):
            canvas.enter(range(int(missing.nonzero()[0]), canvas.block.stop))

    def _put(self, tokens: Tensor) -> None:
        self.canvas.rewrite(tokens)
        if len(self.eos):
            self.canvas.rewrite(tokens, first_of(self.eos, self.canvas))

    def _guess(self) -> tuple[Tensor, Tensor]:
        """Tokens [b, S] and their probabilities [b, S]; -inf where the model was not asked."""
        logits, predicted = self.caller.logits(self.canvas)
        tokens, probability = draw(logits, self.canvas.mask_id, self.temperature, self.generator)
        length = self.canvas.length
        return spread(tokens, predicted, length, 0), spread(probability, predicted, length, -torch.inf)


def spread(found: Tensor, positions: Rows, length: int, fill: float) -> Tensor:
    """What was found [b, m] at its positions, [b, length], and `fill` elsewhere; position `length` is dropped."""
    if isinstance(positions, slice):
        return pad(found, (positions.start, length - positions.stop), value=fill)
    return found.new_full((len(found), length + 1), fill).scatter_(1, positions, found)[:, :length]


def first_of(eos: Tensor, canvas: Canvas) -> Tensor:
    """Where each text has its first EOS behind the prompt, int64 [b, 1]; its length where there is none."""
    found = torch.isin(canvas.tokens[:, canvas.prompt :], eos)
    at = canvas.positions[canvas.prompt :]
    return torch.where(found, at, canvas.length).amin(dim=1, keepdim=True)
