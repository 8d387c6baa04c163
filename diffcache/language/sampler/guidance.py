"""Guidance: each text is also asked for without its prompt, and the logits are moved away from that."""

from __future__ import annotations

import torch
from torch import Tensor

from diffcache.language.cache import Rows
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.session import CallPlan, ModelCaller


class GuidedCaller:
    """LLaDA's unsupervised guidance (arXiv 2502.09992): u + (scale + 1) (c - u), where u sees masks in place of the prompt.

    Both go through the model in one batch, and through the cache of twice as many texts.

    Args:
        caller: asks the model about 2 b texts.
        scale: 0 leaves the logits as they are.
    """

    def __init__(self, caller: ModelCaller, scale: float) -> None:
        self.caller = caller
        self.report = caller.report
        self._scale = scale
        self._both: Canvas | None = None

    def plan(self, canvas: Canvas) -> CallPlan:
        return self.caller.plan(self._doubled(canvas))

    def logits(
        self, canvas: Canvas, plan: CallPlan | None = None, told: list[int] | None = None
    ) -> tuple[Tensor, Rows]:
        both = self._doubled(canvas) if plan is None or self._both is None else self._both
        logits, predicted = self.caller.logits(both, plan, told)
        batch = len(canvas.tokens)
        with_prompt, without = logits[:batch].float(), logits[batch:].float()
        if isinstance(predicted, Tensor):
            without = _in_order_of(predicted[:batch], predicted[batch:], without, canvas.length)
            predicted = predicted[:batch]
        return without + (self._scale + 1) * (with_prompt - without), predicted

    def _doubled(self, canvas: Canvas) -> Canvas:
        """The texts, and behind them the same texts with a masked prompt."""
        without = canvas.tokens.masked_fill(canvas.positions < canvas.prompt, canvas.mask_id)
        tokens = torch.cat([canvas.tokens, without])
        limit = torch.cat([canvas.limit, canvas.limit])
        both = self._both = self._both or canvas.of_tokens(tokens, limit)
        both.rewrite(tokens, limit)
        if both.block != canvas.block:
            both.enter(canvas.block)
        both.step, both.block_step, both.edited = canvas.step, canvas.block_step, canvas.edited
        both.upcoming = None if canvas.upcoming is None else torch.cat([canvas.upcoming, canvas.upcoming])
        return both


def _in_order_of(wanted: Tensor, found: Tensor, logits: Tensor, length: int) -> Tensor:
    """Logits [b, m, V] of positions `found` [b, m], in the order of `wanted` [b, m]; anything for what was not found."""
    at = found.new_zeros(len(found), length + 1)
    at.scatter_(1, found, torch.arange(found.shape[1], device=found.device).expand_as(found))
    return logits.gather(1, at.gather(1, wanted)[..., None].expand_as(logits))
