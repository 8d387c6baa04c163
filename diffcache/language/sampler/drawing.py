"""Drawing: which token a position gets from its logits, and how sure the model is of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diffcache.kernels.likeliest import likeliest
from diffcache.language.sampler.noise import Noise, gumbel

DREAM = ("maskgit_plus", "topk_margin", "entropy", "origin")
"""Dream's rules: they rank by the distribution that tokens are drawn from, LLaDA's by the model's own."""

BY_PROBABILITY = ("low_confidence", "maskgit_plus")
BY_CHANCE = ("random", "origin")
LEAST = -1e30
REMASKING = ("low_confidence", "random", *DREAM)


@dataclass(frozen=True)
class Drawing:
    """How tokens are drawn, and by what positions are ranked.

    A score ranks positions and does not saturate. It is the log-odds of the drawn token's probability; -log(1 - margin) for
    `topk_margin`; -log(entropy) for `entropy`. `LEAST` where a token counts as unsure, NaN where logits are no numbers.

    Attributes:
        forbidden: tokens that are never drawn, int64 [k]: the mask, and more.
        unsure: tokens that are drawn but count as least sure, int64 [0 or more].
        remasking: of `REMASKING`.
        temperature: 0 takes the likeliest token; else Gumbel noise in float64 is added, as LLaDA does.
        top_p, top_k: only the likeliest tokens are drawn; None for all.
    """

    forbidden: Tensor
    unsure: Tensor
    remasking: str = "low_confidence"
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None

    def __call__(
        self, logits: Tensor, noise: Noise, calls: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tokens [b, m] and their scores, float32 [b, m].

        Args:
            logits: [b, m, V]; overwritten.
            noise: for a temperature above 0.
            calls: int64 [b, 1], calls that each text has seen.
            positions: int64 [b or 1, m], which positions the logits predict.
        """
        logits.index_fill_(-1, self.forbidden, -torch.inf)
        if self._is_plain:
            token, odds = likeliest(logits.flatten(0, 1))
            return token.view(logits.shape[:2]), odds.view(logits.shape[:2])
        logits = logits.float()
        drawn_from = self._drawn_from(logits)
        if self.temperature == 0:
            tokens = drawn_from.argmax(dim=-1)
        else:
            uniform = noise.of_tokens(calls, positions, logits.shape[-1])
            tokens = (drawn_from.double() + gumbel(uniform)).argmax(dim=-1)
        ranked = drawn_from if self.remasking in DREAM else logits
        if len(self.unsure):
            ranked = ranked.index_fill(-1, self.unsure, -torch.inf)
        return tokens, self._score(ranked, tokens)

    def confidence(self, score: Tensor) -> Tensor:
        """Scores as the published rules give them: a probability, a margin, or a negative entropy."""
        if self.remasking == "entropy":
            return -(-score).exp()
        return 1 - (-score).exp() if self.remasking == "topk_margin" else score.sigmoid()

    @property
    def _is_plain(self) -> bool:
        filtered = self.top_p is not None or self.top_k is not None or len(self.unsure) > 0
        return self.temperature == 0 and not filtered and self.remasking not in ("topk_margin", "entropy")

    def _drawn_from(self, logits: Tensor) -> Tensor:
        """The logits that tokens are drawn from: first the temperature, then top_p, then top_k, as Dream has them."""
        if self.temperature > 0:
            logits = logits / self.temperature
        if self.top_p is not None:
            ordered, order = logits.sort(dim=-1, descending=True)
            before = ordered.softmax(dim=-1).cumsum(dim=-1).roll(1, -1)
            before[..., 0] = 0
            logits = logits.masked_fill(
                torch.zeros_like(order).bool().scatter(-1, order, before > self.top_p), -torch.inf
            )
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        return logits

    def _score(self, logits: Tensor, tokens: Tensor) -> Tensor:
        if self.remasking == "topk_margin":
            return _margin_score(logits)
        if self.remasking == "entropy":
            return _entropy_score(logits)
        picked = logits.gather(-1, tokens[..., None])
        others = logits.scatter(-1, tokens[..., None], -torch.inf)
        return (picked - others.logsumexp(dim=-1, keepdim=True))[..., 0].clamp(min=LEAST)


def _margin_score(logits: Tensor) -> Tensor:
    """-log(1 - (p1 - p2)), where 1 - p1 + p2 is the sum of all weights but the first, and the second once more."""
    two = logits.topk(2, dim=-1)
    others = logits.scatter(-1, two.indices[..., :1], -torch.inf)
    left = torch.logaddexp(others.logsumexp(dim=-1), two.values[..., 1])
    return logits.logsumexp(dim=-1) - left


def _entropy_score(logits: Tensor) -> Tensor:
    """-log(entropy). Where the entropy is too small for float32, its logarithm is computed from the runner-up on."""
    top, token = logits.max(dim=-1, keepdim=True)
    below = (logits - top).scatter(-1, token, -torch.inf)
    gap = -below.amax(dim=-1, keepdim=True).clamp(
        min=-1e30
    )  # from the first to the second; finite without a second
    weight = (below + gap).exp()  # of all but the first, over the second's
    moment = torch.where(weight > 0, -weight * below, 0.0).sum(dim=-1)
    rest, gap = weight.sum(dim=-1), gap[..., 0]
    small = (-gap).exp()
    entropy = (rest * small).log1p() + moment * small / (1 + rest * small)
    return torch.where(gap > 15, gap - (rest + moment).log(), -entropy.log())
