"""The trained testbed: every cache writes right words, and a cache without the one-step delay does not."""

import json
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from diffcache import accelerate, generate, report, restore
from diffcache.evals.language import benchmark as language
from diffcache.evals.language import wordchain
from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.recipes.builtin import LANGUAGE_DEFAULT
from diffcache.language.recipes.elastic import ElasticCacheConfig

GEN_LENGTH = 64
PROMPTS = wordchain.prompts(16, language.PROMPT_WORDS, seed=7)


@pytest.fixture(scope="module")
def model() -> Any:
    return language.load()


def right_words(model: Any, config: LanguageConfig | None, **options: Any) -> float:
    model = restore(model) if config is None else accelerate(model, config)
    written = generate(model, PROMPTS, gen_length=GEN_LENGTH, temperature=1.0, seed=0, **options)
    return float(wordchain.right_words(written.sequences, language.PROMPT_LENGTH).float().mean())


CASES = [
    (name, config, where)
    for where in language.DECODINGS
    for name, config in language.contenders(where).items()
    if where == "blocks" or name.startswith("elastic")
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "config", "where"), CASES, ids=[f"{n}, {w}" for n, _, w in CASES])
def test_right_words(model: Any, name: str, config: LanguageConfig | None, where: str) -> None:
    right = right_words(model, config, **language.DECODINGS[where], threshold=0.9)
    if name.startswith("control"):
        assert right < (0.05 if "32" in name else 0.9)
    else:
        assert right >= 0.99


def test_the_default_is_among_what_is_compared() -> None:
    assert all(LANGUAGE_DEFAULT in language.contenders(where).values() for where in language.DECODINGS)


def test_the_control_hides_all_without_a_refresh(model: Any) -> None:
    assert right_words(model, language.UndelayedConfig(interval=1000), threshold=0.9) < 0.05


def test_a_lower_bound_on_the_drift_refreshes_more(model: Any) -> None:
    shares = []
    for threshold in (0.5, 0.9, 0.99, 1.01):
        accelerate(model, ElasticCacheConfig(threshold=threshold))
        generate(model, PROMPTS[:2], gen_length=32, threshold=0.9)
        shares.append(report(model).compute_fraction)
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]


def test_it_loads_plainly_and_its_tokenizer_reads_and_writes_texts() -> None:
    loaded = AutoModelForCausalLM.from_pretrained(language.FOLDER)
    assert loaded.config.is_causal is False
    tokenizer = AutoTokenizer.from_pretrained(language.FOLDER)
    ids = tokenizer("<bos>rainbowsstudents", add_special_tokens=False).input_ids
    assert ids == [wordchain.BOS, *(wordchain.SYMBOLS.index(letter) for letter in "rainbowsstudents")]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "rainbowsstudents"
    assert (tokenizer.mask_token_id, tokenizer.pad_token_id) == (wordchain.MASK, wordchain.PAD)


def test_it_is_small() -> None:
    assert (language.FOLDER / "model.safetensors").stat().st_size <= 6_000_000


def test_the_checker_knows_right_from_wrong() -> None:
    texts = wordchain.texts(4, 9, torch.Generator().manual_seed(0))
    assert wordchain.exact(texts, wordchain.length_of(1)).all()
    broken = texts.clone()
    broken[0, 20] = wordchain.SYMBOLS.index("x")
    broken[1, 17:25] = broken[1, 1:9]  # a word that exists, and does not follow
    found = wordchain.right_words(broken, wordchain.length_of(1))
    assert found[0].tolist() == [True, False, *[True] * 6]
    assert not found[1].all()
    assert found[2:].all()


@pytest.mark.parametrize("file", ["window.json", "blocks.json"])
def test_the_stored_results_show_that_caches_lose_nothing_and_the_control_does(file: str) -> None:
    found = json.loads((language.FOLDER.parents[1] / "results" / "language" / file).read_text())
    exact = {row["cache"]: 1 - len(row["wrong"]) / row["prompts"] for row in found["rows"]}
    assert found["batch"] >= 32
    assert all(row["prompts"] >= 500 for row in found["rows"] if not row["cache"].startswith("control"))
    for name, share in exact.items():
        if name.startswith("control"):
            assert share < exact["plain"] - 0.1
        else:
            assert share >= exact["plain"] - 0.01
