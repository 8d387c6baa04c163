"""How exact and how fast the language testbed writes with each cache, under the same decode rule with and without."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from diffcache.api import accelerate, report, restore
from diffcache.config import CacheConfig
from diffcache.evals import wordchain
from diffcache.language.canvas import Canvas
from diffcache.language.recipes.block_causal import BlockCausalConfig
from diffcache.language.recipes.dkv import DKVDecodeConfig, DKVPrefillConfig
from diffcache.language.recipes.dllm_cache import DLLMCacheConfig
from diffcache.language.recipes.elastic import ElasticCacheConfig
from diffcache.language.recipes.everything import NoneConfig
from diffcache.language.recipes.fast_dllm import DualConfig, PrefixConfig, VicinityConfig
from diffcache.language.sampling import Generation, generate

FOLDER = Path(__file__).resolve().parent / "testbeds" / "language"
PROMPT_WORDS = 5
PROMPT_LENGTH = wordchain.length_of(PROMPT_WORDS)
GEN_LENGTH = 256

DECODINGS: dict[str, dict[str, Any]] = {"blocks": {"block_length": 32}, "window": {"window": 16}}
"""Where tokens may be written: in blocks, or in a sliding window."""

RULES: dict[str, dict[str, Any]] = {
    "quota": {},
    "threshold": {"threshold": 0.9},
    "factor": {"factor": 1.0},
}
"""How many are written for each call: one, all that are sure enough, or by Fast-dLLM's factor."""


@dataclass(frozen=True, kw_only=True)
class UndelayedConfig(DKVDecodeConfig):
    """The negative control: dKV-Decode that keeps a token's keys and values from when it was still a mask."""

    name: ClassVar[str] = "dkv-decode without delay"

    def rows(self, canvas: Canvas) -> Tensor:
        return canvas.masked


def contenders(decoding: str) -> dict[str, CacheConfig | None]:
    """What is compared where tokens are written like this; None is the plain model."""
    if decoding == "window":
        return {
            "plain": None,
            "elastic-cache": ElasticCacheConfig(),
            "elastic-cache, delayed refresh": ElasticCacheConfig(refresh="delayed"),
            "elastic-cache, threshold 0.99": ElasticCacheConfig(threshold=0.99),
        }
    return {
        "plain": None,
        "none": NoneConfig(),
        "dkv-decode": DKVDecodeConfig(),
        "dkv-prefill": DKVPrefillConfig(),
        "dkv-prefill, interval 4": DKVPrefillConfig(interval=4),
        "fast-dllm-prefix": PrefixConfig(),
        "fast-dllm-dual": DualConfig(),
        "vicinity": VicinityConfig(),
        "dllm-cache": DLLMCacheConfig(),
        "block-causal": BlockCausalConfig(),
        "control: no delay, interval 8": UndelayedConfig(),
        "control: no delay, interval 32": UndelayedConfig(interval=32),
    }


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        cache, rule: what wrote.
        exact: share of texts without any wrong word; words: share of right words.
        lost, gained: prompts that only the plain model, or only this cache, answers exactly.
        calls: model calls for a batch; tokens_per_call: tokens of one text for each.
        row_layers: share of rows x layers that were computed; flops: the plain model's operations over this one's.
        kv_bytes_read: keys and values read, all batches together; cache_bytes: held for one batch.
    """

    cache: str
    rule: str
    exact: float
    words: float
    lost: int
    gained: int
    calls: float
    tokens_per_call: float
    row_layers: float
    flops: float
    kv_bytes_read: int
    cache_bytes: int


def load() -> Any:
    """The testbed's model, in evaluation mode."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(FOLDER, local_files_only=True).eval()


def write(model: nn.Module, prompts: Tensor, config: CacheConfig | None, **options: Any) -> Generation:
    """One run, accelerated by `config` or plain."""
    if config is None:
        restore(model)
    else:
        accelerate(model, config)
    return generate(model, prompts, gen_length=GEN_LENGTH, **options)


class Accuracy:
    """Compares caches on the same prompts under one decode rule.

    Args:
        prompts: [n, PROMPT_LENGTH].
        batch: texts in a model call.
        options: of `generate`.
    """

    def __init__(self, model: nn.Module, prompts: Tensor, batch: int, rule: str, **options: Any) -> None:
        self.model = model
        self.batches = torch.split(prompts, batch)
        self.rule = rule
        self.options = options
        self._plain: Tensor | None = None

    def row(self, name: str, config: CacheConfig | None) -> Row:
        """The plain model (None) comes first."""
        runs, ledgers = [], []
        for batch in self.batches:
            runs.append(write(self.model, batch, config, **self.options))
            ledgers += [] if config is None else [report(self.model).ledger]
        texts = torch.cat([run.sequences for run in runs])
        exact = wordchain.exact(texts, PROMPT_LENGTH)
        self._plain = exact if self._plain is None else self._plain
        calls = statistics.mean(run.calls for run in runs)
        computed = sum(ledger.row_layers for ledger in ledgers)
        flops = sum(ledger.flops for ledger in ledgers)
        return Row(
            name,
            self.rule,
            round(float(exact.float().mean()), 4),
            round(float(wordchain.right_words(texts, PROMPT_LENGTH).float().mean()), 5),
            int((self._plain & ~exact).sum()),
            int((exact & ~self._plain).sum()),
            round(calls, 2),
            round(GEN_LENGTH / calls, 2),
            round(computed / sum(ledger.full_row_layers for ledger in ledgers), 4) if ledgers else 1.0,
            round(sum(ledger.full_flops for ledger in ledgers) / flops, 2) if ledgers else 1.0,
            sum(ledger.kv_bytes_read for ledger in ledgers),
            max((ledger.cache_bytes for ledger in ledgers), default=0),
        )


def throughput(
    model: nn.Module,
    prompts: Tensor,
    runs: dict[str, tuple[CacheConfig | None, dict[str, Any]]],
    repeats: int,
) -> dict[str, float]:
    """Median tokens per second of each run; all take turns, so that a busy machine slows all of them alike."""
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, (config, options) in runs.items():
            start = time.perf_counter()
            written = write(model, prompts, config, **options)
            rates[name].append(int(written.lengths.sum()) / (time.perf_counter() - start))
    return {name: statistics.median(found) for name, found in rates.items()}


def accuracy_table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    head = (
        "| cache | rule | exact | right words | lost / gained | tokens per call | rows x layers | operations |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(
        f"| {r.cache} | {r.rule} | {r.exact:.1%} | {r.words:.3%} | {r.lost} / {r.gained} | {r.tokens_per_call:.2f} "
        f"| {r.row_layers:.1%} | {r.flops:.2f}x less |"
        for r in rows
    )


def as_json(rows: list[Row]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]
