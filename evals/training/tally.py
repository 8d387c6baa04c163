"""The testbed of stale caches: a bidirectional Llama that fills in masked tallies (LLaDA, arXiv 2502.09992)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from diffcache.evals.language import tally
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser

PAGES = 10
"""Pages of the longest texts, which have 171 tokens: a prompt of two pages, and 136 tokens to write."""

_BATCH_TOKENS = 3_000
_LEAST_SHARE = 1e-3
_COUNTING = 1_200
"""Iterations in which mostly totals are learned; without them, the noise of the marks drowns what there is to learn."""


def build() -> LlamaForCausalLM:
    """Three layers of width 64 without a causal mask; 0.1 million parameters."""
    config = LlamaConfig(
        vocab_size=len(tally.SYMBOLS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        is_causal=False,
        bos_token_id=tally.BOS,
        eos_token_id=tally.EOS,
        pad_token_id=tally.PAD,
        mask_token_id=tally.MASK,
    )
    return LlamaForCausalLM(config)


def masked_loss(model: LlamaForCausalLM, clean: Tensor, generator: torch.Generator, counting: bool) -> Tensor:
    """LLaDA's bound (equation 3), with shares of masks that are spread evenly over a batch.

    Args:
        counting: marks weigh a tenth.
    """
    n, length = clean.shape
    device = clean.device
    start = torch.rand(1, generator=generator, device=device)
    share = (torch.arange(n, device=device) / n + start) % 1 * (1 - _LEAST_SHARE) + _LEAST_SHARE
    hidden = torch.rand(n, length, generator=generator, device=device) < share[:, None]
    hidden[:, 0] = False
    logits = model(torch.where(hidden, tally.MASK, clean)).logits
    loss = functional.cross_entropy(logits.transpose(1, 2), clean, reduction="none")
    weight = torch.where(clean >= tally.NONE, 1.0, 0.1) if counting else 1.0
    return (loss * weight * hidden / share[:, None]).mean()


def totals_loss(model: LlamaForCausalLM, clean: Tensor, generator: torch.Generator) -> Tensor:
    """Cross entropy of the totals, all of which are masked, where few marks are."""
    is_total = clean >= tally.NONE
    share = 0.3 * torch.rand(len(clean), 1, generator=generator, device=clean.device)
    few = torch.rand(clean.shape, generator=generator, device=clean.device) < share
    few[:, 0] = False
    logits = model(torch.where(is_total | few, tally.MASK, clean)).logits
    return functional.cross_entropy(logits[is_total], clean[is_total])


def train(training: Training) -> Progress:
    """Trains on fresh texts of 1 to 10 pages, and saves the model in half precision to `training.out`."""
    torch.manual_seed(training.seed)
    model = build().to(training.device)

    def loss(generator: torch.Generator) -> Tensor:
        iteration = generator.initial_seed() - training.seed * 1_000_003
        local = torch.Generator().manual_seed(int(generator.initial_seed() % 2**62))
        most = min(PAGES, 1 + iteration // 150)
        pages = int(torch.randint(1, most + 1, (1,), generator=local))
        clean = tally.texts(_BATCH_TOKENS // tally.length_of(pages), pages, local).to(training.device)
        if iteration < _COUNTING and iteration % 2:
            return totals_loss(model, clean, generator)
        return masked_loss(model, clean, generator, iteration < _COUNTING)

    optimiser = Optimiser(model, lambda name, p: p.ndim >= 2 and "layers." in name)
    progress = fit(model, loss, optimiser, Pace(lr=2e-3, checkpoint_every=60), training)
    model.half().save_pretrained(training.out)
    return progress
