"""What a new user gets wrong: one sentence that says what to do instead, and the target is as it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from language.tiny import texts, tiny_llama
from support.toys import ToyDenoiser, toy_pipeline

from diffcache import (
    ConfigError,
    DiffcacheError,
    EasyCacheConfig,
    TargetError,
    accelerate,
    decide_together,
    denoising_run,
    evaluate,
    generate,
    load_language_model,
    method,
    report,
    serving,
    show,
)
from diffcache.recipes.ertacache import ERTACacheConfig

PROMPTS = ["one", "two"]

OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "quality nan": ({"quality": math.nan, "prompts": PROMPTS}, "give a PSNR in dB"),
    "quality inf": ({"quality": math.inf, "prompts": PROMPTS}, "give a PSNR in dB"),
    "no threshold": ({"config": "trajectory", "threshold": None}, "threshold must be a value, not None"),
    "no interval": ({"config": "uniform", "interval": None}, "interval must be a value, not None"),
    "a site's number": (
        {"config": "taylorseer", "site": 3},
        "site must be the name or kind of a site, not 3",
    ),
    "a covariance's number": ({"config": "trajectory", "covariance": 1.5}, "covariance must be a square"),
    "a response's number": ({"config": "trajectory", "response": 1.5}, "response must be two rows"),
    "quality of a method": ({"config": "even", "quality": 40, "prompts": PROMPTS}, "quality= goes alone"),
    "quality below 0": ({"quality": -3, "prompts": PROMPTS}, "give a PSNR in dB"),
    "speedup inf": ({"speedup": math.inf}, "speedup must be a number >= 1 and finite, not inf"),
    "components a number": ({"components": 5}, r"a tuple of names among \['transformer'\]"),
    "components a name": ({"components": "transformer"}, r"a tuple of names among \['transformer'\]"),
    "a config's class": ({"config": EasyCacheConfig}, "not the class EasyCacheConfig"),
    "no name": ({"config": ""}, "there is no method ''"),
    "a name in capitals": ({"config": "FBCache"}, "did you mean 'fbcache'"),
    "a folder that is not here": (
        {"config": "my-plans"},
        "there is no method 'my-plans', and no folder of that name here",
    ),
    "a speed-up without its name": ({"config": 2}, "write speedup=2 for a speed-up"),
    "what no method is called": ({"config": "xyz"}, "choose one of deepcache, dpcache, easycache, ertacache"),
    "one site for many": ({"config": "profilingdit", "blocks": "blocks.1"}, "a tuple of sites' names"),
    "indices of blocks": ({"config": "profilingdit", "blocks": (1, 2)}, "a tuple of sites' names"),
    "no blocks": ({"config": "profilingdit", "blocks": ()}, "a tuple of sites' names"),
    "a window that falls": ({"config": "pab", "window": (0.8, 0.1)}, "two numbers that rise"),
    "no window": (
        {"config": "fastercache", "guidance_window": None},
        "guidance_window must be a value, not None",
    ),
    "a share above 1": ({"config": "tgate", "gate": 3}, "between 0 and 1"),
    "ratios below 0": ({"config": "magcache", "ratios": (1, -1)}, "numbers above 0"),
    "a calibration's number": ({"config": "ertacache", "calibration": 5}, "folder or hub id"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_a_wrong_option_is_one_sentence_and_leaves_the_target(case: str) -> None:
    options, sentence = OPTIONS[case]
    pipe = toy_pipeline()
    own = type(pipe), type(pipe.transformer)
    for attached in (False, True):
        if attached:
            accelerate(pipe, "uniform", interval=3)
        with pytest.raises(DiffcacheError, match=sentence) as error:
            accelerate(pipe, **options)
        assert "\n" not in str(error.value)
        assert attached or (type(pipe), type(pipe.transformer)) == own
    assert (report(pipe).method, report(pipe).options["interval"]) == ("uniform", 3)


@pytest.mark.parametrize("target", [diffusers.WanPipeline, ToyDenoiser], ids=lambda target: target.__name__)
def test_a_class_in_place_of_an_object_is_named(target: type) -> None:
    with pytest.raises(TargetError, match=f"cannot accelerate the class {target.__name__}"):
        accelerate(target)


def test_a_calibration_may_be_a_path() -> None:
    assert ERTACacheConfig(calibration=Path("folder")).calibration == "folder"


LOOPS: dict[str, tuple[tuple[Any, ...], str]] = {
    "half a step": ((2.5,), "whole number of steps"),
    "a text": (("4",), "whole number of steps"),
    "no number": ((None,), "whole number of steps"),
    "one sigma": ((4, 5), "one finite number, 0 or more, for each of the 4 steps"),
    "a sigma below 0": ((2, [1.0, -0.5]), "0 or more"),
    "a sigma that is no number": ((2, [1.0, math.nan]), "one finite number"),
    "sigmas with two axes": ((2, torch.ones(2, 2)), "one finite number"),
    "sigmas as text": ((2, ["a", "b"]), "one finite number"),
    "a noise scheduler as sigmas": ((4, diffusers.DDIMScheduler()), "one finite number"),
    "timesteps as the noise scheduler": (
        (4, None, torch.arange(4)),
        "takes a noise scheduler of Diffusers' .*, not a Tensor",
    ),
    "a noise scheduler that was not set": (
        (4, None, diffusers.DDIMScheduler()),
        "call its set_timesteps first",
    ),
}


@pytest.mark.parametrize("case", LOOPS)
@pytest.mark.parametrize("attached", [True, False], ids=["accelerated", "plain"])
def test_a_loop_that_cannot_be_is_one_sentence(case: str, attached: bool) -> None:
    arguments, sentence = LOOPS[case]
    net = ToyDenoiser().eval()
    net = accelerate(net, "uniform") if attached else net
    with pytest.raises(TargetError, match=sentence), denoising_run(net, *arguments):
        pass


@pytest.mark.parametrize("i", ["1", 1.5, None], ids=str)
def test_a_step_is_a_whole_number(i: Any) -> None:
    net = accelerate(ToyDenoiser().eval(), "uniform")
    with (
        denoising_run(net, 4) as run,
        pytest.raises(DiffcacheError, match=r"begin_step\(.*\): this run has steps 0 to 3"),
    ):
        run.begin_step(i)
    with denoising_run(net, 4) as run:
        run.begin_step(torch.tensor(1))  # type: ignore[arg-type]


@pytest.mark.parametrize("attached", [True, False], ids=["accelerated", "plain"])
def test_a_step_after_the_loop_is_refused(attached: bool) -> None:
    net = ToyDenoiser().eval()
    net = accelerate(net, "uniform") if attached else net
    with denoising_run(net, 4) as run:
        pass
    with pytest.raises(DiffcacheError, match="this denoising_run is over"):
        run.begin_step(0)


WRITING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a length as text": (
        lambda model: generate(model, texts(1, 5), gen_length="8"),
        "gen_length must be at least 1 and a whole number",
    ),  # type: ignore[arg-type]
    "half a length": (
        lambda model: generate(model, texts(1, 5), gen_length=8.5),
        "gen_length must be at least 1 and a whole number",
    ),  # type: ignore[arg-type]
    "threshold nan": (
        lambda model: generate(model, texts(1, 5), threshold=math.nan),
        "threshold must be a finite number",
    ),
    "factor inf": (
        lambda model: generate(model, texts(1, 5), factor=math.inf),
        "factor must be a finite number",
    ),
    "temperature nan": (
        lambda model: generate(model, texts(1, 5), temperature=math.nan),
        "temperature must be a finite",
    ),
    "a seed as text": (lambda model: generate(model, texts(1, 5), seed="a"), "seed must be a whole number"),  # type: ignore[arg-type]
    "a mask's text": (
        lambda model: generate(model, texts(1, 5), mask_token_id="a"),
        "mask_token_id must be a whole",
    ),  # type: ignore[arg-type]
    "lists of tokens": (lambda model: generate(model, [[1, 2]]), "input_ids must be a tensor, not a list"),  # type: ignore[arg-type]
    "a prompt's text": (lambda model: generate(model, "hello"), "input_ids must be a tensor, not a str"),  # type: ignore[arg-type]
    "a mask's list": (
        lambda model: generate(model, texts(1, 5), attention_mask=[[1]]),
        "attention_mask must be a tensor",
    ),  # type: ignore[arg-type]
    "no boolean": (
        lambda model: accelerate(model, "dkv-decode", ahead="no"),
        "ahead must be one of True, False, not 'no'",
    ),
    "what no method is called": (
        lambda model: accelerate(model, "xyz"),
        "choose one of block-causal, dkv-decode",
    ),
    "a bound on bytes": (
        lambda model: accelerate(model, max_cache_bytes=100),
        "choose a language method instead",
    ),
}


@pytest.mark.parametrize("case", WRITING)
def test_a_language_model_with_wrong_options_is_one_sentence(case: str) -> None:
    function, sentence = WRITING[case]
    model = tiny_llama()
    own = type(model)
    with pytest.raises(ConfigError, match=sentence):
        function(model)
    assert type(model) is own


def _served(**options: Any) -> None:
    with serving(ToyDenoiser().eval(), **options):
        pass


OTHERS: dict[str, tuple[Callable[[], Any], str]] = {
    "a model of no kind": (
        lambda: generate(None, texts(1, 5)),
        "NoneType is no language model of a known family",
    ),
    "no path": (lambda: load_language_model(""), "takes a folder or the name of a repository"),  # type: ignore[arg-type]
    "None for a path": (lambda: load_language_model(None), "takes a folder or the name of a repository"),  # type: ignore[arg-type]
    "a method's name to register": (lambda: method("mine"), "@method goes above a method's class"),  # type: ignore[type-var]
    "a folder's number": (lambda: show(3), "show\\(\\) takes a folder or a hub id, not 3"),  # type: ignore[arg-type]
    "a pipeline to evaluate": (
        lambda: evaluate(toy_pipeline(), Path("out")),  # type: ignore[arg-type]
        "which names the model and the method, not a ToyPipeline",
    ),
    "a mesh's name": (lambda: decide_together(ToyDenoiser(), "mesh"), "a DeviceMesh .*, not 'mesh'"),
    "a time-out's text": (
        lambda: _served(timeout="60"),
        "timeout must be a number of seconds above 0, not '60'",
    ),
    "a shared number": (lambda: _served(shared=5), "shared takes names of arguments, as a tuple, not 5"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_functions_refuse_in_one_sentence(case: str) -> None:
    function, sentence = OTHERS[case]
    with pytest.raises(DiffcacheError, match=sentence) as error:
        function()
    assert "\n" not in str(error.value)
