"""`accelerate(target, folder)`: whatever was saved there attaches, and what cannot is refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError
from language.tiny import EOS, MASK, texts, tiny_llama
from language.tiny import pipeline as language_pipeline
from support.harness import STEPS, reference
from zoo.pipelines import CASES

import diffcache
from diffcache import (
    ConfigError,
    DiffcacheError,
    EasyCacheConfig,
    ScheduleError,
    TargetError,
    UniformConfig,
    accelerate,
    generate,
    methods,
    paused,
    plan,
    report,
    restore,
)
from diffcache.hooks import attachments
from diffcache.profiling.calibrating.threshold import calibrate_threshold

NAME = "WanPipeline"


def pipeline() -> Any:
    return CASES[NAME].build()


def render(pipe: Any) -> torch.Tensor:
    return CASES[NAME].render(pipe, 0, STEPS)


@pytest.fixture(scope="module")
def schedule() -> Any:
    pipe = accelerate(pipeline(), "uniform", interval=3)
    render(pipe)
    return report(pipe).to_schedule()


@pytest.mark.parametrize("as_text", [True, False], ids=["str", "Path"])
def test_a_saved_config_attaches(tmp_path: Path, as_text: bool) -> None:
    config = EasyCacheConfig(threshold=0.4, warmup_steps=1)
    folder = config.save_pretrained(tmp_path / "saved")
    pipe = accelerate(pipeline(), str(folder) if as_text else folder)
    image = render(pipe)
    assert report(pipe).options == config.options()
    assert torch.equal(image, render(accelerate(pipeline(), config)))
    assert plan(pipeline(), folder, **CASES[NAME].call(0, STEPS)).method == "easycache"


def test_options_change_what_was_saved(tmp_path: Path) -> None:
    folder = EasyCacheConfig(threshold=0.4, warmup_steps=2).save_pretrained(tmp_path)
    pipe = accelerate(pipeline(), folder, threshold=0.0)
    assert torch.equal(render(pipe), reference(NAME))
    assert report(pipe).options["warmup_steps"] == 2
    with pytest.raises(ConfigError, match="no option 'interval'"):
        accelerate(pipeline(), folder, interval=2)


def test_a_saved_schedule_attaches(tmp_path: Path, schedule: Any) -> None:
    pipe = accelerate(pipeline(), schedule.save_pretrained(tmp_path))
    assert torch.equal(render(pipe), render(accelerate(pipeline(), "uniform", interval=3)))


def test_a_saved_calibration_attaches(tmp_path: Path) -> None:
    pipe = pipeline()
    call = {**CASES[NAME].call(0, STEPS), "generator": torch.Generator().manual_seed(0)}
    config = calibrate_threshold(pipe, [call], EasyCacheConfig(warmup_steps=1), 0.7)
    accelerate(pipe, config.save_pretrained(tmp_path))
    render(pipe)
    assert report(pipe).options["threshold"] == config.threshold


@pytest.mark.parametrize("name", [name for name in methods() if name in ("dkv-decode", "elastic-cache")])
def test_a_saved_config_attaches_to_a_language_model(name: str, tmp_path: Path) -> None:
    folder = methods()[name](warmup_steps=2).save_pretrained(tmp_path / "saved")
    model = accelerate(tiny_llama(), folder)
    written = generate(model, texts(1, 5), gen_length=8).sequences
    assert report(model).options["warmup_steps"] == 2
    expected = accelerate(tiny_llama(), name, warmup_steps=2)
    assert torch.equal(written, generate(expected, texts(1, 5), gen_length=8).sequences)


@pytest.mark.parametrize("make", [pipeline, tiny_llama], ids=["pipeline", "language model"])
def test_a_folder_with_nothing_or_with_both_is_refused(
    make: Any, tmp_path: Path, schedule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    target = make()
    for nothing in (tmp_path, tmp_path / "missing", "nobody/has-this"):
        with pytest.raises(ScheduleError, match=r"repository with cache_config\.json or"):
            accelerate(target, nothing)
    UniformConfig().save_pretrained(tmp_path)
    schedule.save_pretrained(tmp_path)
    with pytest.raises(ScheduleError, match=r"holds both cache_config\.json and cache_schedule\.json"):
        accelerate(target, tmp_path)
    with pytest.raises(TargetError, match="not accelerated"):
        report(target)


@pytest.mark.parametrize("first", ["config", "schedule"])
def test_saving_beside_the_other_kind_is_told_at_once(
    first: str, tmp_path: Path, schedule: Any, caplog: pytest.LogCaptureFixture
) -> None:
    both = [UniformConfig(), schedule] if first == "config" else [schedule, UniformConfig()]
    both[0].save_pretrained(tmp_path)
    both[0].save_pretrained(tmp_path)
    assert not caplog.messages
    both[1].save_pretrained(tmp_path)
    (told,) = caplog.messages
    assert f"holds cache_{first}.json too" in told


def test_what_was_saved_for_the_other_kind_of_target_is_refused(tmp_path: Path, schedule: Any) -> None:
    picture, language = tmp_path / "picture", tmp_path / "language"
    UniformConfig().save_pretrained(picture)
    methods()["dkv-decode"]().save_pretrained(language)
    saved = schedule.save_pretrained(tmp_path / "schedule")
    for folder, sentence in ((picture, "uniform caches a denoiser"), (saved, "a schedule caches a denoiser")):
        with pytest.raises(ConfigError, match=sentence):
            accelerate(tiny_llama(), folder)
    with pytest.raises(
        TargetError, match="dkv-decode caches the tokens of a masked-diffusion language model"
    ):
        accelerate(pipeline(), language)


def test_a_hub_id_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: Any) -> None:
    """A repository has a file or not: what is missing is asked for and not found."""
    EasyCacheConfig(threshold=0.3).save_pretrained(tmp_path / "config")
    schedule.save_pretrained(tmp_path / "schedule")

    def download(repo: str, file: str) -> str:
        path = tmp_path / repo.removeprefix("somebody/") / file
        if not path.exists():
            raise EntryNotFoundError(f"no {file}")
        return str(path)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    pipe = accelerate(pipeline(), "somebody/config")
    render(pipe)
    assert report(pipe).options["threshold"] == 0.3
    render(accelerate(pipe, "somebody/schedule"))
    assert report(pipe).method == "schedule"
    with pytest.raises(DiffcacheError, match="neither a folder nor"):
        accelerate(pipe, "somebody/nothing")


def write(target: Any) -> None:
    if hasattr(target, "transformer"):
        render(target)
    elif hasattr(target, "scheduler"):
        special = {"mask_token_id": MASK, "eos_token_id": EOS, "output_type": "seq"}
        target(input_ids=texts(1, 5), gen_length=16, num_inference_steps=8, threshold=2.0, **special)
    else:
        generate(target, texts(1, 5), gen_length=8)


@pytest.mark.parametrize(
    ("make", "method"),
    [(pipeline, "uniform"), (tiny_llama, None), (language_pipeline, "fast-dllm-dual")],
    ids=["pipeline", "language model", "language pipeline"],
)
def test_report_paused_and_restore_are_the_same_for_every_target(make: Any, method: str | None) -> None:
    target = make()
    own = type(target)
    for function in (report, lambda target: paused(target).__enter__()):
        with pytest.raises(TargetError, match="not accelerated"):
            function(target)
    accelerate(target, method)
    assert report(target).notes == ["no run yet"]
    with paused(target):
        write(target)
    assert report(target).notes == ["no run yet"]
    write(target)
    assert report(target).compute_fraction < 1
    accelerate(target, method)
    assert report(target).notes == ["no run yet"]
    assert restore(restore(target)) is target
    assert type(target) is own
    with pytest.raises(TargetError, match="not accelerated"):
        report(target)


@pytest.mark.parametrize(
    "part", [lambda pipe: pipe.transformer, tiny_llama], ids=["denoiser", "language model"]
)
def test_a_compiled_module_and_the_one_inside_are_one_target(part: Any) -> None:
    module = part(pipeline()) if part is not tiny_llama else tiny_llama()
    own = type(module)
    compiled = torch.compile(module, backend="eager")
    for first, second in ((module, compiled), (compiled, module)):
        accelerate(first)
        assert report(second).notes == ["no run yet"]
        with paused(second):
            assert attachments.is_paused(module)
        restore(second)
        with pytest.raises(TargetError, match="not accelerated"):
            report(first)
        assert type(module) is own


def test_a_path_is_never_looked_for_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", None)  # to call it would raise a TypeError
    with pytest.raises(ScheduleError, match="neither a folder"):
        accelerate(pipeline(), tmp_path / "missing")


def test_a_name_that_needs_an_extra_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> None:
        raise ModuleNotFoundError(name="torchmetrics")

    monkeypatch.setattr(diffcache, "import_module", missing)
    with pytest.raises(
        ImportError, match=r"diffcache\.compare needs torchmetrics: pip install '\.\[evals\]'"
    ):
        _ = diffcache.compare


@pytest.mark.parametrize("model", ["gpt2", "bloom"])
def test_a_language_model_whose_decoder_has_other_layers_is_refused(model: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model, n_embd=8, hidden_size=8, n_head=2, n_layer=1, vocab_size=32)
    with pytest.raises(TargetError, match="no language model of a known family"):
        accelerate(AutoModelForCausalLM.from_config(config))


def test_a_threshold_beside_a_speedup_is_told_not_to_count(caplog: pytest.LogCaptureFixture) -> None:
    pipe = accelerate(pipeline(), speedup=2)
    assert not caplog.messages
    accelerate(pipe, speedup=2, threshold=0.1)
    (told,) = caplog.messages
    assert told.startswith("threshold= is not looked at beside speedup=")
