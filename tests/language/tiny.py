"""Tiny bidirectional models with random weights, for exactness and bookkeeping; they write nonsense."""

import torch
from diffusers import BlockRefinementScheduler, LLaDA2Pipeline
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from diffcache.language.backbones.families import backbone_of
from diffcache.language.cache import Rows, TokenKVCache
from diffcache.language.recipes.none import NoneConfig
from diffcache.language.report import LanguageReport
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.sampler.drawing import Drawing
from diffcache.language.sampler.noise import Noise

MASK = 1
EOS = 2
VOCABULARY = 40


def tiny_llama(seed: int = 0, **options: object) -> LlamaForCausalLM:
    """Three layers, four heads on two key/value heads; weights large enough that attention is not uniform."""
    torch.manual_seed(seed)
    config = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "is_causal": False,
        "mask_token_id": MASK,
        "eos_token_id": EOS,
        "bos_token_id": 3,
        "pad_token_id": 0,
        "initializer_range": 0.2,
        **options,
    }
    return LlamaForCausalLM(LlamaConfig(**config)).eval()


def pipeline() -> LLaDA2Pipeline:
    """Around the model, in blocks of 8."""
    pipe = LLaDA2Pipeline(tiny_llama(), BlockRefinementScheduler(block_length=8), tokenizer=None)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def texts(batch: int, length: int, seed: int = 0) -> Tensor:
    """Random tokens [batch, length], none of them special."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randint(4, VOCABULARY, (batch, length), generator=generator, device="cpu")


def stored_keys(cache: TokenKVCache) -> Tensor:
    """A copy of the text's keys, [L, b, K, S, D]."""
    return torch.stack([cache.read(layer)[0] for layer in range(3)])


def greedy(mask_id: int = MASK) -> Drawing:
    """Takes the likeliest token, never the mask."""
    return Drawing(torch.tensor([mask_id]), torch.tensor([], dtype=torch.int64))


def drawn(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest tokens [b, m] of logits [b, m, V], and their log-odds."""
    still = torch.zeros(len(logits), 1, dtype=torch.int64)
    return greedy()(logits, Noise(still, 0), still, torch.arange(logits.shape[1])[None])


class Walker:
    """A walk over a cache of its own, asked for logits of rows."""

    def __init__(self, model: LlamaForCausalLM, real: Tensor, length: int | None = None) -> None:
        self.net = backbone_of(model)
        self.cache = TokenKVCache(len(self.net.layers), real, dtype=self.net.dtype)
        self.cache.resize(real.shape[1] if length is None else length)
        self.report = LanguageReport.of_run("walk", {}, self.net, len(real))
        self.walk = NoneConfig().walk(self.net, self.cache, self.report)

    @torch.no_grad()
    def __call__(self, tokens: Tensor, rows: Rows) -> Tensor:
        """Logits of all these rows."""
        canvas = Canvas.of_prompts(tokens, 0, MASK)
        canvas.enter(range(tokens.shape[1]) if isinstance(rows, Tensor) else range(rows.start, rows.stop))
        with self.report.counting_call(self.cache.length, len(canvas.block)):
            return self.walk(canvas, rows, full=False)[0]

    def full(self, tokens: Tensor) -> Tensor:
        return self(tokens, slice(0, tokens.shape[1]))
