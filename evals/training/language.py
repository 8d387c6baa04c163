"""The language testbed: a bidirectional Llama that fills in masked letters of word chains (LLaDA, arXiv 2502.09992)."""

from __future__ import annotations

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from diffcache.evals.language import wordchain
from diffcache.evals.training.loop import Pace, Progress, Training, fit
from diffcache.evals.training.optim import Optimiser

WORDS = 40
"""Words of the longest texts. They have 321 tokens: a prompt, and at least 256 tokens to write."""

_BATCH_TOKENS = 5_000
_LEAST_SHARE = 1e-3


def build() -> LlamaForCausalLM:
    """Four layers of width 96 without a causal mask; 0.4 million parameters."""
    config = LlamaConfig(
        vocab_size=len(wordchain.SYMBOLS),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=3,
        max_position_embeddings=512,
        is_causal=False,
        bos_token_id=wordchain.BOS,
        eos_token_id=wordchain.EOS,
        pad_token_id=wordchain.PAD,
        mask_token_id=wordchain.MASK,
    )
    return LlamaForCausalLM(config)


def tokenizer() -> PreTrainedTokenizerFast:
    """One token for each character, with the four special ones."""
    vocabulary = {symbol: i for i, symbol in enumerate(wordchain.SYMBOLS)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        mask_token="<mask>",
        eos_token="<eos>",
        bos_token="<bos>",
        padding_side="left",
    )


def masked_loss(model: LlamaForCausalLM, clean: Tensor, generator: torch.Generator) -> Tensor:
    """LLaDA's bound (equation 3): cross entropy of the masked tokens, divided by the share that is masked.

    Each row masks tokens with its own probability and keeps a prompt of random length. The shares of a batch
    are spread evenly over (0, 1): the loss is less noisy than with independent draws.
    """
    n, length = clean.shape
    device = clean.device
    start = torch.rand(1, generator=generator, device=device)
    share = (torch.arange(n, device=device) / n + start) % 1 * (1 - _LEAST_SHARE) + _LEAST_SHARE
    prompt = torch.randint(wordchain.HEAD, length // 2, (n, 1), generator=generator, device=device)
    hidden = torch.rand(n, length, generator=generator, device=device) < share[:, None]
    hidden &= torch.arange(length, device=device) >= prompt
    logits = model(torch.where(hidden, wordchain.MASK, clean)).logits
    loss = functional.cross_entropy(logits.transpose(1, 2), clean, reduction="none")
    weighted = (loss * hidden / share[:, None]).sum(dim=1) / (length - prompt[:, 0])
    return weighted.mean()


def train(training: Training) -> Progress:
    """Trains on fresh chains of 2 to 40 words, and saves model and tokenizer to `training.out`."""
    torch.manual_seed(training.seed)
    device = training.device
    model = build().to(device)

    def loss(generator: torch.Generator) -> Tensor:
        local = torch.Generator().manual_seed(int(generator.initial_seed() % 2**62))
        words = int(torch.randint(2, WORDS + 1, (1,), generator=local))
        clean = wordchain.texts(_BATCH_TOKENS // wordchain.length_of(words), words, local).to(device)
        return masked_loss(model, clean, generator)

    optimiser = Optimiser(model, lambda name, p: p.ndim >= 2 and "layers." in name)
    progress = fit(model, loss, optimiser, Pace(lr=3e-3), training)
    model.save_pretrained(training.out)
    tokenizer().save_pretrained(training.out)
    return progress
