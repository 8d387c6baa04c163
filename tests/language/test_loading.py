"""Checkpoints of every form load as a user loads them, compute what their own modelling file computes, and leave no trace."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from language.forms import FORMS, by_hand, write
from language.tiny import tiny_llama
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    LlamaForCausalLM,
    PreTrainedModel,
    utils,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import import_utils

from diffcache import ConfigError, TargetError, accelerate, load_language_model
from diffcache.evals.language import benchmark as language
from diffcache.language import loading, remote_code
from diffcache.language.remote_code import complete, refill_frequencies, transformers_4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a form's checkpoint, written once."""
    written: dict[str, Path] = {}

    def of(form: str) -> Path:
        if form not in written:
            written[form] = write(form, tmp_path_factory.mktemp("checkpoints") / form)
        return written[form]

    return of


def logits(model: Any) -> Tensor:
    """Of a text of 24 tokens; masks of pairs for those that insist on one."""
    pairs = torch.ones(1, 1, 24, 24) if type(model).__name__ == "SDARForCausalLM" else None
    with torch.no_grad():
        return model(torch.arange(4, 28)[None], attention_mask=pairs).logits


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_computes_what_its_modelling_file_computes(form: str, folder: Any) -> None:
    model, tokenizer = load_language_model(folder(form), trust_remote_code=True)
    assert tokenizer is None
    assert not model.training
    assert torch.equal(logits(model), logits(by_hand(folder(form))))


@pytest.mark.parametrize("form", FORMS)
def test_a_loaded_checkpoint_is_saved_and_loaded_again(form: str, folder: Any, tmp_path: Path) -> None:
    model, _ = load_language_model(folder(form), trust_remote_code=True)
    model.save_pretrained(tmp_path)
    again, _ = load_language_model(tmp_path, trust_remote_code=True)
    assert torch.equal(logits(model), logits(again))


STATE: list[tuple[Any, str]] = [
    (import_utils, "is_torch_fx_available"),
    (utils, "LossKwargs"),
    (PreTrainedModel, "all_tied_weights_keys"),
    *((PreTrainedModel, name) for name in remote_code._METHODS),
]


def state() -> list[Any]:
    return [
        *(vars(owner).get(name) for owner, name in STATE),
        dict(ROPE_INIT_FUNCTIONS),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.get_default_dtype(),
    ]


@pytest.mark.parametrize("broken", [False, True], ids=["loads", "fails"])
@pytest.mark.parametrize("form", FORMS)
def test_transformers_is_as_it_was(form: str, broken: bool, folder: Any, tmp_path: Path) -> None:
    before = state()
    if broken:
        write(form, tmp_path)
        (tmp_path / "model.safetensors").write_bytes(b"no weights")
        with pytest.raises(Exception, match="header"):
            load_language_model(tmp_path, trust_remote_code=True)
    else:
        load_language_model(folder(form), trust_remote_code=True)
    assert state() == before


def names_left_out(name: str) -> Any:
    return tuple(each for each in remote_code._NAMES if each[1] != name)


def methods_left_out(name: str) -> Any:
    return {each: wrap for each, wrap in remote_code._METHODS.items() if each != name}


SHIMS = [
    ("llada2", "_NAMES", names_left_out("is_torch_fx_available"), "is_torch_fx_available"),
    ("sdar", "_NAMES", names_left_out("LossKwargs"), "LossKwargs"),
    ("dream", "_FREQUENCIES", {}, "default"),
    ("llada", "_NAMES", names_left_out("all_tied_weights_keys"), "all_tied_weights_keys"),
    ("llada", "_METHODS", methods_left_out("_finalize_model_loading"), "tie_weights"),
    ("fast-dllm-v2", "_METHODS", methods_left_out("get_expanded_tied_weights_keys"), "'keys'"),
    ("llada2", "_METHODS", methods_left_out("get_init_context"), None),
    ("dream", "_METHODS", methods_left_out("_move_missing_keys_from_meta_to_device"), None),
    ("llada", "complete", lambda model: None, "use_cache"),
]
"""A form, the shim that is taken away, and what the error then names; None where there is none, and the result is wrong."""


@pytest.mark.parametrize(("form", "name", "without", "error"), SHIMS)
def test_each_shim_is_needed(
    form: str, name: str, without: Any, error: str | None, folder: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    right, fresh = (
        logits(by_hand(folder(form))),
        tmp_path / "fresh",
    )  # modules are imported once for each folder
    shutil.copytree(folder(form), fresh)
    monkeypatch.setattr(loading if hasattr(loading, name) else remote_code, name, without)

    def load() -> Tensor:
        return logits(load_language_model(fresh, trust_remote_code=True)[0])

    if error is None:
        assert not torch.equal(load(), right)
        return
    with pytest.raises((ImportError, KeyError, AttributeError, TypeError), match=error):
        load()


@pytest.mark.parametrize("form", ["dream", "llada2", "llada-moe", "sdar", "fast-dllm-v2"])
def test_frequencies_that_transformers_left_unfilled_are_filled(
    form: str, folder: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a user loads a checkpoint who has helped himself with the names alone."""
    kind = AutoModel if form == "dream" else AutoModelForCausalLM
    monkeypatch.setattr(remote_code, "_METHODS", methods_left_out("get_init_context"))
    with transformers_4():
        model = kind.from_pretrained(folder(form), trust_remote_code=True).eval()
    complete(model)
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            module.inv_freq.fill_(3.0)  # memory that happens to be right proves nothing
    with caplog.at_level(logging.WARNING, "diffcache"):
        refill_frequencies(model)
    assert "computed anew" in caplog.text
    assert torch.equal(logits(model), logits(by_hand(folder(form))))
    caplog.clear()
    refill_frequencies(model)
    assert not caplog.text


def test_transformers_own_classes_load_by_their_name(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path)
    model, _ = load_language_model(tmp_path, dtype=torch.bfloat16, token_shift=1, block_attention=4)
    assert type(model) is LlamaForCausalLM
    assert model.dtype == torch.bfloat16
    assert (model.config.token_shift, model.config.block_attention) == (1, 4)


def test_diffusion_gemma_loads_and_is_not_accelerated(tmp_path: Path) -> None:
    text = {
        "vocab_size": 40,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    experts = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}
    config = DiffusionGemmaConfig(
        text_config={**text, **experts, "num_key_value_heads": 2, "head_dim": 8},
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
        canvas_length=8,
    )
    DiffusionGemmaForBlockDiffusion(config).save_pretrained(tmp_path)
    model, _ = load_language_model(tmp_path)
    assert type(model) is DiffusionGemmaForBlockDiffusion
    with pytest.raises(TargetError, match="keeps the keys and values of all finished text itself"):
        accelerate(model)


def test_the_tokenizer_comes_with_the_model() -> None:
    _, tokenizer = load_language_model(language.FOLDER)
    assert tokenizer("ab")["input_ids"] == AutoTokenizer.from_pretrained(language.FOLDER)("ab")["input_ids"]


def test_a_class_that_transformers_does_not_have(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "architectures": ["DiffusionBirdForMaskedLM"]})
    )
    with pytest.raises(TargetError, match="names DiffusionBirdForMaskedLM, which transformers"):
        load_language_model(tmp_path)


def test_remote_code_is_not_run_unasked(folder: Any) -> None:
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        load_language_model(folder("llada"))


WHERE_NOTHING_IS: dict[str, tuple[str, dict[str, str], str]] = {
    "no folder": ("absent", {}, r"no language model can be read from '.*absent' \(.+\): give a folder"),
    "an empty folder": ("here", {}, r"no language model can be read from '.*here' \(.+\): give a folder"),
    "a file": ("here/notes.txt", {"notes.txt": "words"}, "no language model can be read from .*notes.txt"),
    "a pipeline": ("here", {"model_index.json": "{}"}, r"a pipeline of Diffusers: load it with DiffusionPip"),
    "an unknown kind": ("here", {"config.json": '{"model_type": "bird"}'}, "no language model can be read"),
}


@pytest.mark.parametrize("case", WHERE_NOTHING_IS)
def test_where_no_model_is_one_sentence_says_what_to_give(case: str, tmp_path: Path) -> None:
    path, files, sentence = WHERE_NOTHING_IS[case]
    (tmp_path / "here").mkdir()
    for name, text in files.items():
        (tmp_path / "here" / name).write_text(text)
    with pytest.raises(TargetError, match=sentence):
        load_language_model(tmp_path / path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"block_attention": 0},
        {"block_attention": -3},
        {"token_shift": 5},
        {"device": "nope"},
        {"device": 1.5},
        {"dtype": "float3"},
    ],
)
def test_what_no_model_has_is_refused_before_anything_is_read(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        load_language_model("nowhere", **wrong)
