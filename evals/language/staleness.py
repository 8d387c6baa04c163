"""The staleness curve: how often a cache must refresh, on texts in which what is stale does harm (`tally.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from diffcache.api import accelerate, report, restore
from diffcache.evals.harness.markdown import markdown_table, named_once
from diffcache.evals.language import tally
from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.recipes.block_causal import BlockCausalConfig
from diffcache.language.recipes.builtin import LANGUAGE_DEFAULT
from diffcache.language.recipes.dkv import DKVDecodeConfig, DKVGreedyConfig, DKVPrefillConfig
from diffcache.language.recipes.dllm_cache import DLLMCacheConfig
from diffcache.language.recipes.elastic import ElasticCacheConfig
from diffcache.language.recipes.fast_dllm import DualConfig, PrefixConfig, VicinityConfig
from diffcache.language.sampler.sampling import generate

FOLDER = Path(__file__).resolve().parents[1] / "testbeds" / "tally"
PROMPT_PAGES, PAGES = 2, 8
GEN_LENGTH = tally.PAGE * PAGES
"""Tokens that are written: 136."""

FIT_SEED, SCORE_SEED = 3, 4
NEVER = 1_000
INTERVALS = (2, 4, 8, 16, 32, NEVER)
DRIFTS = (1.01, 0.999, 0.99, 0.97, 0.9, -1.01)
SHOWN = (0, 2, 5)
"""Of the intervals or drifts, those that the table shows; all are stored."""
NOT_SHOWN = "dkv-decode, ahead=False, around=4"
"""Lies between its neighbours."""
TOLERANCE = 0.03
"""An interval holds if it loses no more than this share of right pages against the plain model."""

ONE_BLOCK, WINDOW, BLOCKS, BY_CHANCE = "one block", "a window of 16", "blocks of 32", "blocks, by chance"

WAYS: dict[str, dict[str, Any]] = {
    ONE_BLOCK: {"block_length": GEN_LENGTH},
    WINDOW: {"window": 16},
    BLOCKS: {"block_length": 32},
    BY_CHANCE: {"block_length": 32, "remasking": "random"},
}

Make = Callable[[Any], LanguageConfig]


def _around(distance: int) -> Make:
    return lambda interval: DKVDecodeConfig(interval=interval, ahead=False, around=distance)


METHODS: dict[str, tuple[Make, tuple[Any, ...]]] = {
    "default": (lambda _: LANGUAGE_DEFAULT, (None,)),
    "dkv-decode, ahead=False": (_around(0), INTERVALS),
    "dkv-decode, ahead=False, around=4": (_around(4), INTERVALS),
    "dkv-decode, ahead=False, around=8": (_around(8), INTERVALS),
    "dkv-decode": (lambda n: DKVDecodeConfig(interval=n), INTERVALS),
    "dkv-greedy": (lambda n: DKVGreedyConfig(interval=n), INTERVALS),
    "dkv-prefill": (lambda n: DKVPrefillConfig(interval=n), INTERVALS),
    "dllm-cache": (lambda n: DLLMCacheConfig(interval=n), INTERVALS),
    "fast-dllm-dual": (lambda n: DualConfig(max_consecutive_reuses=n - 1), INTERVALS),
    "fast-dllm-prefix": (lambda n: PrefixConfig(max_consecutive_reuses=n - 1), INTERVALS),
    "vicinity": (lambda n: VicinityConfig(max_consecutive_reuses=n - 1), INTERVALS),
    "block-causal": (lambda _: BlockCausalConfig(), (NEVER,)),
    "elastic-cache": (lambda gamma: ElasticCacheConfig(threshold=gamma), DRIFTS),
}
"""What is varied: calls between two refreshes, or the drift below which Elastic-Cache refreshes. From often to never."""

ONLY_IN = {"elastic-cache": WINDOW, "block-causal": BLOCKS, "dkv-greedy": BY_CHANCE}
"""Methods that are for one way of writing."""

SAME_AS = {
    (ONE_BLOCK, "dkv-decode"): "dkv-decode, ahead=False",
    (ONE_BLOCK, "fast-dllm-prefix"): "fast-dllm-dual",
    (WINDOW, "fast-dllm-prefix"): "fast-dllm-dual",
}
"""Methods that compute the same rows as another one where nothing follows the block."""


@dataclass(frozen=True)
class Point:
    """One point of a curve.

    Attributes:
        way: of `WAYS`.
        method: of `METHODS`; "plain" for the model without a cache.
        setting: its interval or drift; None for the plain model.
        seed: of prompts and sampling.
        texts: their number.
        pages: share of pages that are right.
        exact: share of texts whose pages are all right.
        work: share of the plain model's operations.
    """

    way: str
    method: str
    setting: float | None
    seed: int
    texts: int
    pages: float
    exact: float
    work: float


@lru_cache
def load() -> Any:
    """The testbed's model in float32, in evaluation mode; one for each process."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(FOLDER, local_files_only=True, dtype=torch.float32).eval()


def measure(way: str, method: str, setting: Any, seed: int, texts: int) -> Point:
    """One point: so many texts are written, one token at a call, at temperature 1."""
    model = load()
    if method != "plain":
        accelerate(model, METHODS[method][0](setting))
    prompts = tally.prompts(texts, PROMPT_PAGES, seed)
    written = generate(
        model, prompts, gen_length=GEN_LENGTH, temperature=1.0, seed=seed, eos_early_stop=False, **WAYS[way]
    )
    right = tally.right_pages(written.sequences, tally.length_of(PROMPT_PAGES))
    work = 1.0
    if method != "plain":
        told = report(model)
        work = told.flops / told.plain_flops
        restore(model)
    pages, exact = right.float().mean(), right.all(dim=1).float().mean()
    return Point(
        way, method, setting, seed, texts, round(float(pages), 4), round(float(exact), 4), round(work, 4)
    )


def settings(way: str, method: str) -> tuple[Any, ...]:
    """What is tried of a method: nothing that is the same as something else."""
    if ONLY_IN.get(method, way) != way or (way == BY_CHANCE and method not in ONLY_IN):
        return ()
    if (way, method) in SAME_AS:
        return ()
    tried = METHODS[method][1]
    if (
        way in (BLOCKS, BY_CHANCE) and method != "dllm-cache"
    ):  # whose interval counts from the text's beginning
        return tuple(setting for setting in tried if setting != 32)
    return tried


def wanted(methods: list[str] | None) -> Iterator[tuple[str, str, Any]]:
    """Way, method and setting of every point of the curves; first of all the plain model in each way."""
    for way in WAYS:
        yield way, "plain", None
        for method in methods or METHODS:
            for setting in settings(way, method):
                yield way, method, setting


def chosen(points: list[Point]) -> dict[tuple[str, str], Any]:
    """Of the points with the seed for fitting: each method's rarest refresh that holds, and that every more frequent one does."""
    fit = [point for point in points if point.seed == FIT_SEED]
    plain = {point.way: point.pages for point in fit if point.method == "plain"}
    found: dict[tuple[str, str], Any] = {}
    for way, least in plain.items():
        for method in METHODS:
            curve = {
                point.setting: point.pages for point in fit if (point.way, point.method) == (way, method)
            }
            for setting in settings(way, method):
                if setting not in curve or curve[setting] < least - TOLERANCE:
                    break
                found[way, method] = setting
    return found


def curve_table(points: list[Point]) -> str:
    """The curves as a Markdown table: share of right pages by what is varied, and what was chosen by it."""
    fit = {(p.way, p.method, p.setting): p for p in points if p.seed == FIT_SEED}
    scored = {(p.way, p.method, p.setting): p for p in points if p.seed == SCORE_SEED}
    best, rows = chosen(points), []
    for way in WAYS:
        if (way, "plain", None) not in fit:
            continue
        plain = scored.get((way, "plain", None))
        own = f"{fit[way, 'plain', None].pages:.1%}"
        rows.append([way, "plain model", *[""] * (len(SHOWN) - 1), own, "", _share(plain), "100%"])
        for method, (_, every) in METHODS.items():
            tried = settings(way, method)
            cells = [_cell(fit.get((way, method, s)), method) if s in tried else "" for s in every]
            if any(cells) and method != NOT_SHOWN:
                cells = [""] * (
                    len(INTERVALS) - len(cells)
                ) + cells  # what has no interval is never refreshed
                shown = [cells[i] for i in SHOWN]
                rows.append([way, method, *shown, *_choice(best, fit, scored, (way, method))])
    names = [_named(INTERVALS[i]) for i in SHOWN]
    head = ["written in", "cache", *names, "chosen", "other texts", "operations"]
    return markdown_table(head, named_once(rows))


def default_table(points: list[Point]) -> str:
    """The default beside the plain model in each way of writing, on texts that decided nothing."""
    found = {(p.way, p.method): p for p in points if p.setting is None and p.seed == SCORE_SEED}
    rows = []
    for way in (BLOCKS, WINDOW, ONE_BLOCK):
        shares = [f"{found[way, name].pages:.1%}" for name in ("plain", "default")]
        rows.append([way, *shares, f"{found[way, 'default'].work:.0%}"])
    return markdown_table(["written in", "plain model", "default", "operations"], rows)


def _choice(
    best: dict[Any, Any], fit: dict[Any, Point], scored: dict[Any, Point], key: tuple[str, str]
) -> list[str]:
    """What was chosen of a method, its right pages of other texts, and its operations."""
    if key not in best:
        return ["none", "", ""]
    at, setting = (*key, best[key]), best[key]
    return [_named(setting), _share(scored.get(at)), f"{fit[at].work:.0%}"]


def _share(point: Point | None) -> str:
    return "" if point is None else f"{point.pages:.1%}"


def _cell(point: Point | None, method: str) -> str:
    """A share; for Elastic-Cache, which has no interval, with its drift."""
    named = "" if point is None or method != "elastic-cache" else f"{_named(point.setting)}: "
    return named + _share(point)


def _named(setting: float | None) -> str:
    if setting is None:
        return "as it is"
    return "never" if setting == NEVER else f"{setting:g}"


def as_json(points: list[Point]) -> list[dict[str, Any]]:
    return [asdict(point) for point in points]
