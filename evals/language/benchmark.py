"""How exactly and how fast the language testbed writes, with each cache and without one, under the same decode rules."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from diffcache.api import accelerate, report, restore
from diffcache.evals.harness.markdown import markdown_table
from diffcache.evals.language import wordchain
from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.recipes.block_causal import BlockCausalConfig
from diffcache.language.recipes.builtin import LANGUAGE_DEFAULT
from diffcache.language.recipes.dkv import DKVDecodeConfig, DKVPrefillConfig
from diffcache.language.recipes.dllm_cache import DLLMCacheConfig
from diffcache.language.recipes.elastic import ElasticCacheConfig
from diffcache.language.recipes.fast_dllm import DualConfig, PrefixConfig, VicinityConfig
from diffcache.language.recipes.none import NoneConfig
from diffcache.language.report import LanguageReport
from diffcache.language.sampler.canvas import Canvas
from diffcache.language.sampler.sampling import Generation, generate

FOLDER = Path(__file__).resolve().parents[1] / "testbeds" / "language"
PROMPT_WORDS = 5
PROMPT_LENGTH = wordchain.length_of(PROMPT_WORDS)
GEN_LENGTH = 256
SAMPLING: dict[str, Any] = {"temperature": 1.0, "seed": 0}
"""Texts are sampled, because greedy ones soon repeat the same few words."""

WARM_UP = 32
"""Tokens: a block."""

DECODINGS: dict[str, dict[str, Any]] = {"blocks": {"block_length": 32}, "window": {"window": 16}}
"""Which tokens may be written next: those of a block, or those in a sliding window."""

RULES: dict[str, dict[str, Any]] = {
    "quota": {},
    "threshold": {"threshold": 0.9},
    "threshold 0.85": {"threshold": 0.85},
    "factor": {"factor": 1.0},
}
"""How many tokens are written in a model call: one, all above a confidence, or as many as Fast-dLLM's factor allows."""


@dataclass(frozen=True, kw_only=True)
class UndelayedConfig(DKVDecodeConfig):
    """The negative control: dKV-Decode that stores a token's keys and values while it is still a mask."""

    name: ClassVar[str] = "dkv-decode without delay"

    def rows(self, canvas: Canvas) -> Tensor:
        return canvas.masked


def contenders(decoding: str) -> dict[str, LanguageConfig | None]:
    """The caches that are compared under a decoding, by name; None is the plain model."""
    anywhere: dict[str, LanguageConfig | None] = {
        "plain": None,
        "none": NoneConfig(),
        "dkv-decode": DKVDecodeConfig(),
        "default": LANGUAGE_DEFAULT,
        "dkv-decode, interval 64, not ahead": DKVDecodeConfig(interval=64, ahead=False),
        "dkv-prefill": DKVPrefillConfig(),
        "dkv-prefill, interval 4": DKVPrefillConfig(interval=4),
        "dllm-cache": DLLMCacheConfig(),
        "control: no delay, interval 8": UndelayedConfig(),
        "control: no delay, interval 32": UndelayedConfig(interval=32),
    }
    if decoding == "window":
        return {
            **anywhere,
            "elastic-cache": ElasticCacheConfig(),
            "elastic-cache, delayed refresh": ElasticCacheConfig(refresh="delayed"),
            "elastic-cache, threshold 0.99": ElasticCacheConfig(threshold=0.99),
        }
    return {
        **anywhere,
        "fast-dllm-prefix": PrefixConfig(),
        "fast-dllm-dual": DualConfig(),
        "vicinity": VicinityConfig(),
        "block-causal": BlockCausalConfig(),
    }


@dataclass(frozen=True)
class Writing:
    """How texts are written.

    Attributes:
        decoding: of `DECODINGS`.
        rule: of `RULES`.
        batch: texts in a model call.
    """

    decoding: str
    rule: str
    batch: int

    @property
    def options(self) -> dict[str, Any]:
        """Of `generate`."""
        return {**DECODINGS[self.decoding], **RULES[self.rule]}


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        cache, rule: how the texts were written.
        prompts: their number.
        wrong: the numbers of the prompts whose texts have a wrong word.
        words: share of right words.
        calls: model calls for a batch, on average.
        tokens_per_call: tokens of one text that a call writes.
        row_layers: share of rows x layers that was computed.
        flops: the plain model's operations over this one's.
        kv_bytes_read: keys and values read, all batches together.
        cache_bytes: the most that was held for a batch.
    """

    cache: str
    rule: str
    prompts: int
    wrong: list[int]
    words: float
    calls: float
    tokens_per_call: float
    row_layers: float
    flops: float
    kv_bytes_read: int
    cache_bytes: int


@lru_cache
def load() -> Any:
    """The testbed's model, in evaluation mode; one for each process."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(FOLDER, local_files_only=True).eval()


def prepare(model: nn.Module, config: LanguageConfig | None) -> None:
    """Accelerates a model with `config`; None makes it plain."""
    if config is None:
        restore(model)
    else:
        accelerate(model, config)


def write(model: nn.Module, prompts: Tensor, options: dict[str, Any]) -> Generation:
    """One run of the model as it is."""
    return generate(model, prompts, **{"gen_length": GEN_LENGTH, **SAMPLING, **options})


@dataclass(frozen=True)
class Batch:
    """What writing one batch of texts gave.

    Attributes:
        right: which words are right, bool [b, words].
        calls: model calls.
        report: of an accelerated run.
    """

    right: Tensor
    calls: int
    report: LanguageReport | None


def write_batch(config: LanguageConfig | None, prompts: Tensor, options: dict[str, Any]) -> Batch:
    """Writes and checks a batch with this process's model, on one thread."""
    torch.set_num_threads(1)
    model = load()
    prepare(model, config)
    written = write(model, prompts, options)
    right = wordchain.right_words(written.sequences, PROMPT_LENGTH)
    return Batch(right, written.calls, None if config is None else report(model))


def accuracy(
    cache: str, config: LanguageConfig | None, prompts: Tensor, writing: Writing, pool: Executor
) -> Row:
    """How exactly a cache continues `prompts` [n, PROMPT_LENGTH].

    Args:
        cache: its name.
        config: None for the plain model.
        prompts: token ids.
        writing: how texts are written.
        pool: processes that write.
    """
    parts = torch.split(prompts, writing.batch)
    submitted = [pool.submit(write_batch, config, part, writing.options) for part in parts]
    batches = [each.result() for each in submitted]
    right = torch.cat([each.right for each in batches])
    reports = [each.report for each in batches if each.report is not None]
    calls = statistics.mean(each.calls for each in batches)
    return Row(
        cache,
        writing.rule,
        len(right),
        (~right.all(dim=1)).nonzero()[:, 0].tolist(),
        round(float(right.float().mean()), 5),
        round(calls, 2),
        round(GEN_LENGTH / calls, 2),
        _ratio(reports, "row_layers", "full_row_layers"),
        _ratio(reports, "plain_flops", "flops"),
        sum(told.kv_bytes_read for told in reports),
        max((told.cache_bytes for told in reports), default=0),
    )


def _ratio(reports: list[LanguageReport], over: str, under: str) -> float:
    """A ratio of two sums over reports; 1 for the plain model, which has none."""
    if not reports:
        return 1.0
    ratio: float = sum(getattr(x, over) for x in reports) / sum(getattr(x, under) for x in reports)
    return round(ratio, 4)


def throughput(
    model: nn.Module,
    prompts: Tensor,
    runs: dict[str, tuple[LanguageConfig | None, dict[str, Any]]],
    repeats: int,
) -> Iterator[dict[str, float]]:
    """Median tokens per second by run, as far as it is known after each: of this process's CPU time, or of wall time on a GPU.

    The runs take turns. On a GPU a block is written before, for which kernels are built.
    """
    clock = time.perf_counter if prompts.is_cuda else time.process_time
    rates: dict[str, list[float]] = {}
    for _ in range(repeats):
        for name, (config, options) in runs.items():
            prepare(model, config)
            if prompts.is_cuda and name not in rates:
                write(model, prompts, {**options, "gen_length": WARM_UP})
            start = clock()
            tokens = int(write(model, prompts, options).lengths.sum())
            rates.setdefault(name, []).append(tokens / (clock() - start))
            yield {name: statistics.median(found) for name, found in rates.items()}


def accuracy_table(rows: list[Row]) -> str:
    """The rows as a Markdown table. Lost and gained: prompts that only the plain model, or only this cache, answers rightly."""
    plain = {row.rule: set(row.wrong) for row in rows if row.cache == "plain"}

    def against(row: Row) -> str:
        if row.rule not in plain:
            return ""
        both = {i for i in plain[row.rule] if i < row.prompts}
        return f"{len(set(row.wrong) - both)} / {len(both - set(row.wrong))}"

    return markdown_table(
        [
            "cache",
            "rule",
            "exact",
            "right words",
            "lost / gained",
            "tokens per call",
            "rows x layers",
            "operations",
        ],
        [
            [
                row.cache,
                row.rule,
                f"{1 - len(row.wrong) / row.prompts:.1%} of {row.prompts}",
                f"{row.words:.3%}",
                against(row),
                f"{row.tokens_per_call:.2f}",
                f"{row.row_layers:.1%}",
                f"{row.flops:.2f}x less",
            ]
            for row in rows
        ],
    )


def as_json(rows: list[Row]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]
