"""Writer: a batch of texts being written, one model call after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from diffcache.language.cache import Rows
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.sampler.decoding import Chance, Quota, Rule, log_odds
from diffcache.language.sampler.drawing import BY_CHANCE, Drawing
from diffcache.language.sampler.noise import Noise, gumbel
from diffcache.language.session import CallPlan, ModelCaller
from diffcache.schedulers.errors import TargetError


@dataclass(frozen=True)
class Editing:
    """When written tokens are replaced (LLaDA2.1).

    Attributes:
        threshold: another token must have more than this probability.
        most: calls after a text's last mask in a block.
    """

    threshold: float
    most: int


@dataclass(frozen=True)
class Part:
    """A block that is to be written.

    Attributes:
        block: its positions.
        rule: which candidates a call commits.
        calls: model calls of a rule with a quota; None for another rule.
        quotas: what each of them commits; None to spread what is masked evenly.
    """

    block: range
    rule: Rule
    calls: int | None
    quotas: list[int] | None = None

    @property
    def sure_calls(self) -> int:
        """So many first calls have something to write, where nobody else writes. Who leaves it to chance may be done early."""
        if self.calls is None or self.rule.may_skip:
            return 0
        return min(self.calls, len(self.block)) if self.quotas is None else len(self.quotas)


@dataclass(frozen=True)
class Turn:
    """What is known before a model call.

    Attributes:
        rule: of the block.
        quota: what a fixed number of calls asks of this one, int64 [1 or b, 1].
        masked: texts that have something left to write in the block, bool [b, 1].
        open: these, and texts that may still be edited, bool [b, 1].
        order: numbers that rank positions by chance, [b, S]; None where the model's scores rank them.
    """

    rule: Rule
    quota: Tensor
    masked: Tensor
    open: Tensor
    order: Tensor | None


@dataclass
class Writer:
    """Asks the model, chooses, commits. Sizes: b texts, S positions.

    Attributes:
        caller: how the model is asked.
        canvas: the texts.
        drawing: how tokens are drawn and ranked.
        noise: what is random.
        eos: tokens behind whose first nothing is written, int64 [0 or more].
        finishes_blocks: the block of an EOS is finished.
        alg_temp: positions are drawn by a softmax of confidence / alg_temp; 0 takes the surest.
        editing: None for never.
    """

    caller: ModelCaller
    canvas: Canvas
    drawing: Drawing
    noise: Noise
    eos: Tensor
    finishes_blocks: bool = False
    alg_temp: float = 0.0
    editing: Editing | None = None

    def __post_init__(self) -> None:
        texts = self.canvas.tokens[:, :1]
        self._calls = torch.zeros_like(texts)  # that each text has needed
        self._post = torch.zeros_like(texts)  # of them after the block's last mask
        self._settled = torch.zeros_like(texts, dtype=torch.bool)
        self._replaced = False  # by somebody else, at some time
        # Whether any text has masks in this block or behind it; None: not known.
        self._left: bool | None = None
        self._stuck = torch.zeros((), dtype=torch.bool, device=texts.device)

    def write(self, part: Part) -> Iterator[Tensor]:
        """Writes a block.

        Yields:
            After each model call, bool [b, S]: what was written. The texts may be replaced before the next.

        Raises:
            TargetError: a call says nothing about what may be written.
        """
        canvas = self.canvas
        if self.finishes_blocks:
            self._cut()
            self._left = None
        if self._left is False:
            return
        canvas.enter(part.block)
        self._post.zero_()
        self._settled = ~canvas.candidates.any(dim=1, keepdim=True) | (self.editing is None)
        quotas = self._quotas(part)
        while True:
            at = min(canvas.block_step, quotas.shape[1] - 1)
            turn = self._look(part.rule, quotas[:, at : at + 1])
            sure = self._surely_goes_on(part)
            begins = canvas.block_step == 0
            if begins and not sure and not self._left and not self._read(turn)[0]:
                break
            plan = self.caller.plan(canvas)
            told: list[int] | None = None
            if not begins and not sure:
                goes_on, *told = self._read(turn, plan.asked)
                if not goes_on:
                    break
            yield self._call(turn, plan, told)

    def replace(self, tokens: Tensor) -> None:
        """Puts tokens [b, S] of somebody else's in place of the texts.

        A mask where something had been written is written again; before the block, the block begins anew from there.
        """
        canvas = self.canvas
        self._left = None
        canvas.edited = not torch.equal(tokens, canvas.tokens)
        self._replaced |= canvas.edited
        self._put(tokens)
        missing = canvas.masked.any(dim=0) & (canvas.positions < canvas.block.start)
        if bool(missing.any()):
            canvas.enter(range(int(missing.nonzero()[0]), canvas.block.stop))

    def _quotas(self, part: Part) -> Tensor:
        """What each call of a block commits, int64 [1 or b, calls]; the last one counts for all that follow."""
        canvas, calls = self.canvas, part.calls or 1
        device = canvas.tokens.device
        if isinstance(part.rule, Chance):
            return torch.arange(calls, device=device)[None]
        if part.quotas is not None:
            return torch.tensor([part.quotas], device=device)
        begun = canvas.masked & (canvas.positions < part.block.stop)
        return quota(begun, torch.arange(calls + 1, device=device), calls)

    def _look(self, rule: Rule, quota: Tensor) -> Turn:
        """What the next call is to do; tells the canvas what it will write, where that is known."""
        canvas = self.canvas
        masked = goes_on = canvas.candidates.any(dim=1, keepdim=True)
        if self.editing is not None:
            self._post += ~masked & ~self._settled
            self._settled |= ~masked & (self._post > self.editing.most)
            goes_on = masked | ~self._settled
        canvas.upcoming = order = None
        if self.drawing.remasking in BY_CHANCE:
            order = self.noise.of_positions(self._calls * isinstance(rule, Chance), canvas.positions[None])
        if order is not None and isinstance(rule, Quota):
            next_ones = order.masked_fill(~canvas.candidates, -1.0).topk(min(rule.most, canvas.length), dim=1)
            wanted = canvas.positions[: next_ones.indices.shape[1]] < quota
            canvas.upcoming = next_ones.indices.where(wanted & (next_ones.values >= 0), -1)
        return Turn(rule, quota, masked, goes_on, order)

    def _surely_goes_on(self, part: Part) -> bool:
        """Whether something is left, as far as that is known without the device."""
        untouched = not self._replaced and self.editing is None and not len(self.eos)
        return untouched and self.canvas.block_step < part.sure_calls

    def _read(self, turn: Turn, besides: Tensor | None = None) -> list[int]:
        """Whether anything is left, and what is asked `besides`, int64 [n]: one read from the device.

        Raises:
            TargetError: the last call has said nothing about what may be written.
        """
        left = self.canvas.masked.any()
        own = torch.stack([turn.open.any(), self._stuck, left]).long()
        goes_on, stuck, any_left, *rest = (own if besides is None else torch.cat([own, besides])).tolist()
        self._left = bool(any_left)
        if stuck:
            raise TargetError(
                "no position that may be written got a probability, so the text would never end: let the "
                "method's rows() hold all of canvas.candidates, and look for NaN in the model's logits."
            )
        return [goes_on, *rest]

    def _call(self, turn: Turn, plan: CallPlan, told: list[int] | None) -> Tensor:
        """One model call; returns bool [b, S], what was written."""
        canvas, order = self.canvas, turn.order
        tokens, sure = self._guess(plan, told)
        candidates = canvas.candidates & ~sure.isnan()
        score = torch.where(candidates, self._ranked(sure) if order is None else order, -torch.inf)
        written = candidates & turn.rule.commit(score, turn.quota)
        if not turn.rule.may_skip:
            self._stuck |= (turn.masked & ~written.any(dim=1, keepdim=True)).any()
        if self.editing is not None:
            edited = turn.open & self._edits(self.editing, tokens, sure)
            self._settled |= ~turn.masked & ~edited.any(dim=1, keepdim=True)
            written = written | edited
        self._put(torch.where(written, tokens, canvas.tokens))
        self._calls += turn.open
        canvas.advance()
        return written

    def _guess(self, plan: CallPlan, told: list[int] | None) -> tuple[Tensor, Tensor]:
        """Tokens [b, S] and their scores [b, S]; NaN where the model was not asked."""
        canvas = self.canvas
        logits, predicted = self.caller.logits(canvas, plan, told)
        at = canvas.positions[None, predicted] if isinstance(predicted, slice) else predicted
        tokens, score = self.drawing(logits, self.noise, self._calls, at)
        return _at(predicted, tokens, canvas.length, 0), _at(predicted, score, canvas.length, torch.nan)

    def _ranked(self, score: Tensor) -> Tensor:
        """Scores [b, S], made random where the order is."""
        if not self.alg_temp:
            return score
        uniform = self.noise.of_positions(self._calls, self.canvas.positions[None])
        return self.drawing.confidence(score).double() / self.alg_temp + gumbel(uniform)

    def _edits(self, editing: Editing, tokens: Tensor, score: Tensor) -> Tensor:
        """Bool [b, S]: written tokens of the block that another one replaces."""
        canvas = self.canvas
        written = canvas.in_block & ~canvas.masked & (canvas.positions >= canvas.prompt)
        surer = (score > log_odds(editing.threshold)) & (tokens != canvas.tokens)
        edited: Tensor = written & (canvas.positions <= canvas.limit) & surer
        return edited

    def _put(self, tokens: Tensor) -> None:
        self.canvas.rewrite(tokens)
        if not self.finishes_blocks:
            self._cut()

    def _cut(self) -> None:
        """Lets nothing be written behind a text's first EOS."""
        if len(self.eos):
            canvas = self.canvas
            canvas.rewrite(canvas.tokens, first_eos(self.eos, canvas.tokens, canvas.prompt))


def quota(masked: Tensor, step: Tensor, steps: int) -> Tensor:
    """How many tokens each `step` [n] of `steps` commits, int64 [b, n], at least 1; `masked` [b, S] as the block began."""
    total = masked.sum(dim=1, keepdim=True)
    return (total // steps + (step < total % steps)).clamp(min=1)


def _at(positions: Rows, found: Tensor, length: int, fill: float) -> Tensor:
    """What was found [b, m] at these positions of a text, [b, length], and `fill` elsewhere; position `length` is dropped."""
    if isinstance(positions, slice):
        return pad(found, (positions.start, length - positions.stop), value=fill)
    return found.new_full((len(found), length + 1), fill).scatter_(1, positions, found)[:, :length]


def first_eos(eos: Tensor, tokens: Tensor, prompt: int) -> Tensor:
    """Where each text [b, S] has its first EOS behind the prompt, int64 [b, 1]; S where there is none."""
    length = tokens.shape[1]
    found = torch.isin(tokens[:, prompt:], eos)
    at = torch.arange(prompt, length, device=tokens.device)
    return torch.where(found, at, length).amin(dim=1, keepdim=True)
