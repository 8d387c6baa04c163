"""What is wrong in a call of a verb from Python is one sentence, before anything is rendered; the pipeline is left as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.toys import by_embeds, toy_pipeline

from diffcache import DiffcacheError, EasyCacheConfig, compare, demo, inspect, plan, tune

CALL = {"embeds": by_embeds(), "num_inference_steps": 6}
EASY = EasyCacheConfig()
CASES: dict[str, tuple[Callable[[Any, Path], Any], str]] = {
    "plan: a method's option": (
        lambda pipe, _: plan(pipe, "easycache", threshold=0.1, **CALL),
        r"put threshold= into a config, EasyCacheConfig\(threshold=\.\.\.\)",
    ),
    "plan: a misspelt argument": (
        lambda pipe, _: plan(pipe, **CALL, num_steps=6),
        "ToyPipeline takes no num_steps=: its arguments are embeds",
    ),
    "inspect: a misspelt argument": (lambda pipe, _: inspect(pipe, **CALL, steps=6), "takes no steps="),
    "inspect: a denoiser": (lambda pipe, _: inspect(pipe.transformer, **CALL), "is no pipeline"),
    "tune: a misspelt option": (
        lambda pipe, _: tune(pipe, [CALL] * 3, speedup=2, engin="dp"),
        "ToyPipeline takes no ",
    ),
    "demo: a method's name": (
        lambda pipe, folder: demo(pipe, CALL, "easycache", folder),  # type: ignore[arg-type]
        "needs a method's config, such as EasyCacheConfig",
    ),
    "demo: no number of steps": (
        lambda pipe, folder: demo(pipe, {"embeds": by_embeds()}, EASY, folder),
        "num_inference_steps among them",
    ),
    "demo: no rounds": (lambda pipe, folder: demo(pipe, CALL, EASY, folder, rounds=0), "number of rounds"),
    "demo: a denoiser": (
        lambda pipe, folder: demo(pipe.transformer, CALL, EASY, folder),
        "a ToyDenoiser is no pipeline",
    ),
    "compare: two numbers of steps": (
        lambda pipe, _: compare(pipe, [CALL, {**CALL, "num_inference_steps": 4}], {"easycache": EASY}),
        "calls of the same num_inference_steps",
    ),
    "compare: a misspelt argument": (
        lambda pipe, _: compare(pipe, [{**CALL, "sed": 1}], {"easycache": EASY}),
        "takes no sed=",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_call_is_one_sentence(case: str, tmp_path: Path) -> None:
    function, sentence = CASES[case]
    pipe = toy_pipeline()
    own = type(pipe), type(pipe.transformer)
    with pytest.raises(DiffcacheError, match=sentence) as error:
        function(pipe, tmp_path)
    assert "\n" not in str(error.value)
    assert (type(pipe), type(pipe.transformer)) == own
