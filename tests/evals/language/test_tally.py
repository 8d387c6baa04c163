"""The testbed of stale caches: its checker, its model, and what the stored curves say about the default."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from diffcache import accelerate, generate, restore
from diffcache.evals.language import staleness, tally
from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.recipes.builtin import LANGUAGE_DEFAULT
from diffcache.language.recipes.dkv import LONG_INTERVAL, DKVDecodeConfig

STORED = staleness.FOLDER.parents[1] / "results" / "language" / "staleness.json"


def test_the_checker_knows_right_from_wrong() -> None:
    texts = tally.texts(4, 3, torch.Generator().manual_seed(0))
    prompt = tally.length_of(1)
    assert tally.right_pages(texts, prompt).all()
    wrong = texts.clone()
    wrong[0, prompt + tally.PAGE - 1] += 1 if wrong[0, prompt + tally.PAGE - 1] < tally.NONE + 8 else -1
    wrong[1, prompt + tally.PAGE + 2] = tally.MASK
    wrong[2, 3] = tally.LEFT_ON  # in the prompt
    assert tally.right_pages(wrong, prompt).tolist() == [
        [False, True],
        [True, False],
        [True, True],
        [True, True],
    ]


def test_totals_count_lines_whose_marks_are_both_on() -> None:
    page = tally.texts(1, 1, torch.Generator().manual_seed(3))[0]
    text = "".join(tally.SYMBOLS[token] for token in page[1:])
    assert int(text[-1]) == sum(text[i : i + 2] == "+o" for i in range(0, 16, 2))


def test_the_model_is_small() -> None:
    assert (staleness.FOLDER / "model.safetensors").stat().st_size <= 1_000_000


@pytest.mark.slow
def test_a_cache_that_is_never_refreshed_loses_and_the_default_does_not() -> None:
    model, prompts = staleness.load(), tally.prompts(24, 2, seed=11)

    def right(config: LanguageConfig | None) -> float:
        if config is not None:
            accelerate(model, config)
        options = {"window": 16, "temperature": 1.0, "seed": 11, "eos_early_stop": False}
        written = generate(model, prompts, gen_length=3 * tally.PAGE, **options)
        if config is not None:
            restore(model)
        return float(tally.right_pages(written.sequences, tally.length_of(2)).float().mean())

    plain = right(None)
    assert plain > 0.85
    assert right(DKVDecodeConfig(interval=staleness.NEVER, ahead=False)) < plain - 0.15
    assert right(LANGUAGE_DEFAULT) > plain - 0.1


@pytest.fixture(scope="module")
def points() -> list[staleness.Point]:
    return [staleness.Point(**point) for point in json.loads(STORED.read_text())["points"]]


def pages(points: list[staleness.Point], way: str, method: str, setting: Any, seed: int) -> float:
    (found,) = (
        p.pages for p in points if (p.way, p.method, p.setting, p.seed) == (way, method, setting, seed)
    )
    return found


@pytest.mark.parametrize("seed", [staleness.FIT_SEED, staleness.SCORE_SEED])
@pytest.mark.parametrize("way", ["one block", "a window of 16"])
def test_the_stored_curves_see_staleness(points: list[staleness.Point], way: str, seed: int) -> None:
    never = pages(points, way, "dkv-decode, ahead=False", staleness.NEVER, seed)
    assert never < pages(points, way, "plain", None, seed) - 0.2


@pytest.mark.parametrize("seed", [staleness.FIT_SEED, staleness.SCORE_SEED])
@pytest.mark.parametrize("way", ["one block", "a window of 16", "blocks of 32"])
def test_the_default_holds_in_each_way_of_writing(points: list[staleness.Point], way: str, seed: int) -> None:
    plain = pages(points, way, "plain", None, seed)
    assert pages(points, way, "default", None, seed) >= plain - staleness.TOLERANCE


def test_the_default_does_what_the_curves_choose(points: list[staleness.Point]) -> None:
    assert DKVDecodeConfig(interval=None, ahead=False, around=None) == LANGUAGE_DEFAULT
    same = [
        ("blocks of 32", "fast-dllm-dual", staleness.NEVER),
        ("a window of 16", "dkv-decode, ahead=False, around=8", LONG_INTERVAL),
    ]
    fit = {(p.way, p.method, p.setting): p for p in points if p.seed == staleness.FIT_SEED}
    for way, method, setting in same:
        default, chosen = fit[way, "default", None], fit[way, method, setting]
        assert (default.pages, default.work) == (chosen.pages, chosen.work)
        without = fit[way, "dkv-decode, ahead=False", setting]  # neighbours
        assert without.pages < fit[way, "plain", None].pages - staleness.TOLERANCE


def test_the_choice_is_the_rarest_refresh_that_holds_with_all_before_it() -> None:
    def point(setting: float, share: float) -> staleness.Point:
        return staleness.Point("one block", "dllm-cache", setting, staleness.FIT_SEED, 8, share, 0.0, 0.5)

    plain = staleness.Point("one block", "plain", None, staleness.FIT_SEED, 8, 0.9, 0.0, 1.0)
    curve = [point(2, 0.9), point(4, 0.88), point(8, 0.6), point(16, 0.95)]
    assert staleness.chosen([plain, *curve]) == {("one block", "dllm-cache"): 4}
