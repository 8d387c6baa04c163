"""Writer: a batch of texts being written, one model call after the other."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from diffcache.language.cache import Rows
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.sampler.decoding import Rule, draw, quota, ranks
from diffcache.language.session import ModelCaller
from diffcache.schedulers.errors import TargetError


@dataclass(frozen=True)
class Sampling:
    """What is random in a run.

    Attributes:
        temperature: of the draw; 0 takes the most likely token.
        generator: of the draw; None for PyTorch's own.
        order: [b, S], candidates with larger numbers are committed first; None for the most confident ones.
    """

    temperature: float
    generator: torch.Generator | None
    order: Tensor | None


@dataclass
class Writer:
    """Asks the model, chooses, commits. Sizes: b texts, S positions.

    Attributes:
        caller: how the model is asked.
        canvas: the texts.
        rule: which candidates are committed.
        sampling: what is random.
        eos: tokens behind whose first nothing is written, int64 [0 or more].
    """

    caller: ModelCaller
    canvas: Canvas
    rule: Rule
    sampling: Sampling
    eos: Tensor

    def write(self, block: range, steps: int) -> Iterator[Tensor]:
        """Writes a block, for which a quota counts so many steps.

        Yields:
            After each model call, bool [b, S]: what was written. The texts may be replaced before the next.

        Raises:
            TargetError: a call says nothing about what may be written.
        """
        canvas = self.canvas
        canvas.enter(block)
        begun = canvas.masked & (canvas.positions < block.stop)
        quotas = quota(begun, torch.arange(steps + 1, device=begun.device), steps)
        while bool(canvas.candidates.any()):
            at = min(canvas.block_step, steps)
            yield self._call(quotas[:, at : at + 1])

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

    def _call(self, asked: Tensor) -> Tensor:
        """One model call, of which a quota asks so many tokens, int64 [b, 1]; returns bool [b, S], what was written."""
        canvas, order = self.canvas, self.sampling.order
        if order is not None:
            first = ranks(order.masked_fill(~canvas.candidates, -1)) < asked
            canvas.upcoming = canvas.candidates & first
        tokens, probability = self._guess()
        predicted = canvas.candidates & (probability >= 0)  # neither -inf nor NaN
        confidence = torch.where(predicted, probability if order is None else order, -torch.inf)
        commit = predicted & self.rule.commit(confidence, asked)
        if not bool(commit.any()):
            raise TargetError(
                "no position that may be written got a probability, so the text would never end: let the "
                "method's rows() hold all of canvas.candidates, and look for NaN in the model's logits."
            )
        self._put(torch.where(commit, tokens, canvas.tokens))
        canvas.advance()
        return commit

    def _put(self, tokens: Tensor) -> None:
        self.canvas.rewrite(tokens)
        if len(self.eos):
            self.canvas.rewrite(tokens, first_eos(self.eos, self.canvas))

    def _guess(self) -> tuple[Tensor, Tensor]:
        """Tokens [b, S] and their probabilities [b, S]; -inf where the model was not asked."""
        logits, predicted = self.caller.logits(self.canvas)
        sampling, length = self.sampling, self.canvas.length
        tokens, probability = draw(logits, self.canvas.mask_id, sampling.temperature, sampling.generator)
        return _at(predicted, tokens, length, 0), _at(predicted, probability, length, -torch.inf)


def _at(positions: Rows, found: Tensor, length: int, fill: float) -> Tensor:
    """What was found [b, m] at these positions of a text, [b, length], and `fill` elsewhere; position `length` is dropped."""
    if isinstance(positions, slice):
        return pad(found, (positions.start, length - positions.stop), value=fill)
    return found.new_full((len(found), length + 1), fill).scatter_(1, positions, found)[:, :length]


def first_eos(eos: Tensor, canvas: Canvas) -> Tensor:
    """Where each text has its first EOS behind the prompt, int64 [b, 1]; its length where there is none."""
    found = torch.isin(canvas.tokens[:, canvas.prompt :], eos)
    at = canvas.positions[canvas.prompt :]
    return torch.where(found, at, canvas.length).amin(dim=1, keepdim=True)
