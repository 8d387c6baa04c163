"""Likelihoods of masked-diffusion models: a bound on them, by Monte Carlo (LLaDA, arXiv 2502.09992, eq. 6 and alg. 3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diffcache.language.backbones.families import backbone_of


@torch.no_grad()
def likelihood_bound(
    model: Any,
    context: Tensor,
    target: Tensor,
    mask_id: int,
    *,
    draws: int = 128,
    batch: int = 16,
    cfg_scale: float = 0.0,
    seed: int = 1234,
) -> float:
    """A lower bound on log p(target | context) in nats: the mean over draws of (L / l) * sum of log p over l masked tokens.

    As in LLaDA's evaluation, l is spread evenly over 1 .. L within a batch, and l of the L target tokens are masked. For a target
    of one token it is exact. It always computes the model in full.

    Args:
        model: accelerated or plain.
        context: int64 [C], never masked.
        target: int64 [L], at least one token.
        draws: Monte Carlo draws (published: 128), rounded up to whole batches.
        batch: draws in a model call.
        cfg_scale: guidance away from the text with a masked context; 0 for none.
        seed: of the draws.
    """
    net = backbone_of(model)
    size, length = len(target), len(context) + len(target)
    given = torch.cat([context, target]).to(next(model.parameters()).device)
    generator = torch.Generator().manual_seed(seed)
    rounds = -(-draws // batch)
    total = 0.0
    for _ in range(rounds):
        counts = masked_counts(size, batch, generator)
        order = torch.rand(batch, size, generator=generator).argsort(dim=1).argsort(dim=1)
        masked = torch.zeros(batch, length, dtype=torch.bool)
        masked[:, len(context) :] = order < counts[:, None]
        masked = masked.to(given.device)
        texts = torch.where(masked, mask_id, given)
        logits = net.call(texts, None, net.block_attention).float()
        if cfg_scale:
            without = texts.clone()
            without[:, : len(context)] = mask_id
            unguided = net.call(without, None, net.block_attention).float()
            logits = unguided + (cfg_scale + 1) * (logits - unguided)
        if net.token_shift:
            logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)
        sure = logits.log_softmax(-1).gather(-1, given.expand(batch, -1)[..., None])[..., 0]
        weights = size / counts.to(sure.device)
        total += float(((sure * masked).sum(dim=1) * weights).sum()) / batch
    return total / rounds


def masked_counts(size: int, batch: int, generator: torch.Generator) -> Tensor:
    """How many of `size` tokens are masked in each draw of a batch, int64 [batch]: evenly spread, from a random beginning."""
    first = int(torch.randint(1, size + 1, (), generator=generator))
    spread = torch.linspace(first, first + (batch - 1) * size / batch, batch).round().long()
    return (spread - 1) % size + 1
