"""LanguageReport: what it counts, what it says before a run, and what it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from language.tiny import EOS, MASK, pipeline, texts, tiny_llama

from diffcache import accelerate, generate, report
from diffcache.language.backbones.families import backbone_of
from diffcache.language.report import LanguageReport


def test_before_a_run_it_is_empty_and_whole() -> None:
    told = LanguageReport("dkv-decode", {"interval": 8})
    assert told.summary() == "dkv-decode: no run yet"
    assert (told.compute_fraction, told.speedup, told.calls, told.cache_bytes) == (1.0, 1.0, 0, 0)
    assert repr(told) == "<LanguageReport dkv-decode: no run yet>"


def test_rows_operations_and_bytes_are_counted_for_all_texts() -> None:
    net = backbone_of(tiny_llama())
    told = LanguageReport.of_run("method", {}, net, batch=2)
    costs = told.costs
    with told.counting_call(10, 6):
        for rows in (10, 4, 4):
            told.count_layer(rows, 10)
        told.count_probe(100)
        told.count_logits(4)
    assert told.row_layers_of == [2 * 18]
    assert (told.row_layers, told.full_row_layers) == (2 * 18, 2 * 10 * 3)
    assert told.probe_flops == 200
    assert told.flops == 2 * (18 * (costs.row + costs.pair * 10) + 100 + 4 * costs.head)
    assert told.full_flops == 2 * costs.call(10, 10, 6)
    assert told.plain_flops == 2 * costs.call(10, 10, 10)
    assert told.kv_bytes_read == 2 * 3 * 10 * told.position_bytes == 2 * 3 * 10 * 2 * 2 * 8 * 4
    assert (told.calls, told.full_calls) == (1, 0)
    with told.counting_call(10, 6):
        for _ in range(3):
            told.count_layer(10, 10)
    assert (told.calls, told.full_calls) == (2, 1)


def test_a_call_that_computes_rows_twice_is_no_full_one() -> None:
    model = accelerate(
        tiny_llama(), "elastic-cache", threshold=1.01
    )  # every later call refreshes all layers but the first
    generate(model, texts(1, 7), gen_length=24, window=16, eos_early_stop=False)
    told = report(model)
    assert told.full_calls == 1
    assert max(told.row_layers_of[1:]) >= told.row_layers_of[0]


@pytest.mark.parametrize("options", [{"block_length": 4}, {"window": 3}, {"cfg_scale": 1.0}], ids=str)
def test_the_method_none_is_what_others_are_a_share_of(options: dict[str, Any]) -> None:
    model = accelerate(tiny_llama(), "none")
    generate(model, texts(2, 7), gen_length=12, eos_early_stop=False, **options)
    told = report(model)
    assert (told.compute_fraction, told.flops) == (1.0, told.full_flops)
    assert "100.0% of the operations (1.00x less)" in told.summary()


def test_the_method_none_is_all_that_the_llada2_pipeline_computes() -> None:
    pipe = accelerate(pipeline(), "none")
    pipe(input_ids=texts(1, 5), gen_length=16, mask_token_id=MASK, eos_token_id=EOS)
    assert report(pipe).compute_fraction == 1.0


def test_a_report_of_one_run_is_left_alone_by_the_next(tmp_path: Path) -> None:
    model = accelerate(tiny_llama(), "dkv-decode")
    generate(model, texts(1, 5), gen_length=8, eos_early_stop=False)
    first = report(model)
    generate(model, texts(1, 5), gen_length=4, eos_early_stop=False)
    assert (first.calls, report(model).calls) == (8, 4)
    saved = json.loads(first.save(tmp_path / "report.json").read_text())
    assert (saved["method"], saved["calls"], saved["notes"]) == ("dkv-decode", 8, [])
    assert saved["options"] == first.options


@pytest.mark.parametrize(
    "asked",
    [
        lambda told: told.decisions,
        lambda told: told.reasons,
        lambda told: told.plot("rows.png"),
        lambda told: told.to_schedule(),
    ],
)
def test_what_a_report_tells_of_ticks_it_refuses(asked: Callable[[LanguageReport], Any]) -> None:
    with pytest.raises(NotImplementedError, match="by token and layer, not by tick"):
        asked(LanguageReport("dkv-decode", {"interval": 8}))
    assert not hasattr(LanguageReport("dkv-decode", {}), "decisions")
