"""The public functions on language models, and what is said to those who use them wrongly."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from language.tiny import EOS, MASK, VOCABULARY, pipeline, texts, tiny_llama

from diffcache import (
    ConfigError,
    MethodConfig,
    TargetError,
    UniformConfig,
    accelerate,
    generate,
    methods,
    paused,
    report,
    restore,
    stream,
)
from diffcache.language.cache import TokenKVCache
from diffcache.language.recipes.base import LanguageConfig
from diffcache.language.recipes.fast_dllm import DualConfig
from diffcache.language.sampler.canvas import Canvas

NAMES = [name for name, method in methods().items() if issubclass(method, LanguageConfig)]


def test_all_methods_are_there() -> None:
    assert set(NAMES) == {
        "none",
        "dkv-decode",
        "dkv-greedy",
        "dkv-prefill",
        "elastic-cache",
        "fast-dllm-prefix",
        "fast-dllm-dual",
        "vicinity",
        "dllm-cache",
        "block-causal",
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_method_writes_everything_and_reports_it(name: str) -> None:
    model = accelerate(tiny_llama(), name)
    assert report(model).notes == ["no run yet"]
    options: dict[str, Any] = {"remasking": "random", "seed": 0} if name == "dkv-greedy" else {}
    prompts = texts(3, 9)
    mask = torch.ones_like(prompts)
    mask[0, :4] = 0
    written = generate(model, prompts, mask, gen_length=16, block_length=8, eos_early_stop=False, **options)
    assert not (written.sequences[:, 9:] == model.config.mask_token_id).any()
    assert torch.equal(written.sequences[:, :9], prompts)
    found = report(model)
    assert found.calls == written.calls == 16
    assert found.cache_bytes > 0
    assert name in found.summary()


@pytest.mark.parametrize("name", NAMES)
def test_a_config_is_saved_and_read(name: str, tmp_path: Any) -> None:
    config = methods()[name]()
    config.save_pretrained(tmp_path)
    assert MethodConfig.from_pretrained(tmp_path) == config


def test_a_report_is_saved(tmp_path: Any) -> None:
    model = accelerate(tiny_llama(), "dkv-decode")
    generate(model, texts(1, 5), gen_length=8)
    text = report(model).save(tmp_path / "report.json").read_text()
    assert '"kv_bytes_read"' in text


def test_restore_and_paused_write_what_the_plain_model_writes() -> None:
    model, prompts = tiny_llama(), texts(2, 7)
    plain = generate(model, prompts, gen_length=12).sequences
    accelerate(model)
    cached = generate(model, prompts, gen_length=12)
    cached_run = report(model)
    with paused(model):
        assert torch.equal(generate(model, prompts, gen_length=12).sequences, plain)
    assert report(model) is cached_run
    assert torch.equal(generate(model, prompts, gen_length=12).sequences, cached.sequences)
    assert torch.equal(generate(restore(model), prompts, gen_length=12).sequences, plain)
    with pytest.raises(TargetError, match="not accelerated"):
        report(model)
    with pytest.raises(TargetError, match="nothing to pause"), paused(model):
        pass


def test_nothing_cached_outlives_a_run() -> None:
    model = accelerate(tiny_llama(), "elastic-cache")
    generate(model, texts(1, 5), gen_length=8)
    gc.collect()
    assert not [thing for thing in gc.get_objects() if isinstance(thing, TokenKVCache)]
    kept = weakref.ref(model)
    del model
    gc.collect()
    assert kept() is None


def test_a_run_that_raised_leaves_the_next_one_as_it_was() -> None:
    model, prompts = accelerate(tiny_llama(), "dkv-decode"), texts(2, 7)
    first = generate(model, prompts, gen_length=12).sequences

    def fail(call: int, tokens: torch.Tensor) -> None:
        if call == 5:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        generate(model, texts(1, 4), gen_length=20, callback=fail)
    assert torch.equal(generate(model, prompts, gen_length=12).sequences, first)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gen_length": 12, "block_length": 4, "steps": 2}, "less than one call for each of 3 blocks"),
        ({"gen_length": 8, "steps": 4, "threshold": 0.9}, "steps and threshold are different decode rules"),
        ({"gen_length": 8, "threshold": 0.9, "remasking": "random"}, "asks for confidence"),
        ({"gen_length": 8, "remasking": "high"}, "remasking must be"),
        ({"gen_length": 8, "mask_token_id": 4000}, "not in the vocabulary"),
        ({"gen_length": 8, "mask_token_id": EOS}, "ends texts .* pass the token that the model was trained"),
        ({"gen_length": 8, "eos_token_id": MASK}, "ends texts"),
        ({"gen_length": 0}, "gen_length must be at least 1"),
        ({"gen_length": -1}, "gen_length must be at least 1"),
        ({"gen_length": 8, "block_length": 0}, "block_length must be at least 1"),
        ({"gen_length": 8, "sub_block_length": 0}, "sub_block_length must be at least 1"),
        ({"gen_length": 8, "sub_block_length": 4}, "give block_length=4"),
        ({"gen_length": 8, "steps": 0}, "steps must be at least 1"),
        ({"gen_length": 8, "window": 0}, "window must be at least 1"),
        ({"gen_length": 8, "temperature": -1.0}, "temperature must be at least 0"),
        ({"gen_length": 8, "cfg_scale": -1.0}, "cfg_scale must be at least 0"),
        ({"gen_length": 8, "factor": -1.0}, "factor must be at least 0"),
        ({"gen_length": 8, "threshold": -1.0}, "threshold must be at least 0"),
        ({"gen_length": 8, "editing_threshold": -0.5}, "editing_threshold must be at least 0"),
        ({"gen_length": 8, "top_p": 0.0}, "top_p must be above 0"),
        ({"gen_length": 8, "top_k": 0}, "top_k must be at least 1"),
        ({"gen_length": 8, "eps": 1.0}, "eps must be at least 0 and below 1"),
        ({"gen_length": 8, "eps": 1e-3, "threshold": 0.9}, "leave out eps or threshold"),
        ({"gen_length": 8, "remasking": "entropy", "threshold": 0.9}, "asks for confidence"),
        ({"gen_length": 8, "remasking": "entropy", "editing_threshold": 0.9}, "asks for the probability"),
        ({"gen_length": 8, "alg_temp": 0.5, "remasking": "random"}, "alg_temp makes a ranked order"),
        ({"gen_length": 8, "min_tokens": 2}, "min_tokens goes with a threshold"),
        ({"gen_length": 8, "max_post_steps": -1}, "max_post_steps must be at least 0"),
        ({"gen_length": 8, "eos_early_stop": "never"}, "eos_early_stop must be True, False"),
        ({"gen_length": 8, "seed": 1.5}, "seed must be a whole number"),
        ({"gen_length": 8, "seed": [None]}, "seed must be a whole number"),
        ({"gen_length": 8, "seed": [1, 2]}, "2 seeds for 1 text"),
        ({"gen_length": 8, "guidance": 1.0}, "generate has no option 'guidance'; its options are gen_length"),
        ({"input_ids": torch.ones(5, dtype=torch.int64)}, r"input_ids must be tokens \[b, P\]"),
        ({"input_ids": torch.ones(1, 5)}, r"input_ids must be tokens \[b, P\]"),
        (
            {"input_ids": torch.tensor([[4, 5, 40]])},
            "hold the token 40, which is not in the vocabulary of 40",
        ),
        (
            {"input_ids": torch.tensor([[4, -1, 5]])},
            "hold the token -1, which is not in the vocabulary of 40",
        ),
        ({"gen_length": 8, "callback": 7}, "callback=7: give a function"),
        ({"attention_mask": torch.ones(1, 9)}, "mask of the prompts alone"),
        ({"attention_mask": torch.tensor([[1, 1, 1, 1, 0]])}, "pad on the left"),
        ({"attention_mask": torch.tensor([[0, 1, 0, 1, 1]]).bool()}, "pad on the left"),
    ],
    ids=str,
)
def test_wrong_options_of_generate(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        generate(tiny_llama(), **{"input_ids": texts(1, 5), **options})


def test_a_callback_that_is_none_is_refused_before_the_model_is_called() -> None:
    model = accelerate(tiny_llama(), "dkv-decode")
    for asked in (generate, lambda *args, **options: next(stream(*args, **options))):
        with pytest.raises(ConfigError, match="callback='count': give a function"):
            asked(model, texts(1, 5), callback="count")
    assert report(model).calls == 0


@pytest.mark.parametrize("stranger", [-3, VOCABULARY], ids=["below", "above"])
def test_a_callback_cannot_write_what_is_not_in_the_vocabulary(stranger: int) -> None:
    with pytest.raises(ConfigError, match=f"the callback returned the token {stranger}, which is not in"):
        generate(
            tiny_llama(),
            texts(1, 5),
            gen_length=4,
            callback=lambda _, tokens: tokens.index_fill(1, torch.tensor([6]), stranger),
        )


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "compiled"])
def test_a_model_in_training_mode_is_not_cached(wrapped: bool) -> None:
    model, prompts = tiny_llama(attention_dropout=0.5), texts(1, 5)
    with pytest.raises(TargetError, match=r"in training mode, .* call model\.eval\(\) first"):
        accelerate(model.train(), "dkv-decode")
    accelerate(model.eval(), "dkv-decode")
    written = generate(model, prompts, gen_length=8).sequences
    model.train()
    with pytest.raises(TargetError, match=r"in training mode, .* call model\.eval\(\) first"):
        generate(torch.compile(model, backend="eager") if wrapped else model, prompts, gen_length=8)
    with paused(model):  # nothing is reused here
        generate(model, prompts, gen_length=8)
    assert torch.equal(generate(model.eval(), prompts, gen_length=8).sequences, written)


def test_training_mode_is_no_obstacle_where_nothing_is_dropped() -> None:
    model, prompts = accelerate(tiny_llama().train(), "dkv-decode"), texts(1, 5)
    written = generate(model, prompts, gen_length=8).sequences
    assert torch.equal(generate(model.eval(), prompts, gen_length=8).sequences, written)


def test_a_pipeline_whose_model_is_in_training_mode_is_not_cached() -> None:
    pipe = accelerate(pipeline(), "fast-dllm-dual")
    pipe.model.train().config.attention_dropout = 0.5
    with pytest.raises(TargetError, match=r"call model\.eval\(\) first"):
        pipe(input_ids=texts(1, 5), gen_length=8, mask_token_id=MASK, eos_token_id=EOS)


def test_a_missing_mask_token() -> None:
    with pytest.raises(ConfigError, match="pass mask_token_id"):
        generate(tiny_llama(mask_token_id=None), texts(1, 5))


def test_greedy_must_know_what_is_next() -> None:
    with pytest.raises(ConfigError, match='remasking="random"'):
        generate(accelerate(tiny_llama(), "dkv-greedy"), texts(1, 5), gen_length=8)


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("dkv-decode", {"interval": 0}, "interval must be a whole number >= 1"),
        ("dkv-decode", {"window": 4}, "has no option 'window'"),
        ("elastic-cache", {"refresh": "never"}, "refresh must be one of immediate, delayed"),
        ("dllm-cache", {"ratio": 1.5}, "between 0 and 1"),
        ("fast-dllm-dual", {"tail_steps": 1}, "has no option 'tail_steps'"),
        ("fast-dllm-dual", {"hindsight": True}, "has no option 'hindsight'"),
        (
            "fast-dllm-dual",
            {"cache_dtype": "int8"},
            "has no option 'cache_dtype'; its options are warmup_steps",
        ),
        ("fast-dllm-dual", {"cache_device": "cpu"}, "has no option 'cache_device'"),
        ("elastic", {}, "did you mean 'elastic-cache'"),
    ],
    ids=str,
)
def test_wrong_options_of_a_method(method: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        accelerate(tiny_llama(), method, **options)


def test_methods_for_pictures_and_for_language_are_not_mixed_up() -> None:
    with pytest.raises(ConfigError, match="denoiser of pictures"):
        accelerate(tiny_llama(), UniformConfig())
    with pytest.raises(TargetError, match="masked-diffusion language model"):
        accelerate(torch.nn.Linear(3, 3), "dkv-decode")


@dataclass(frozen=True, kw_only=True)
class ForgetfulConfig(DualConfig):
    """A method that is wrong: after its first call it never computes position 9, in a few rows or in many."""

    name: ClassVar[str] = "forgetful"

    prompts: bool

    def rows(self, canvas: Canvas) -> torch.Tensor:
        return (canvas.masked | (self.prompts & (canvas.positions < canvas.prompt))) & (canvas.positions != 9)


@pytest.mark.parametrize("prompts", [False, True], ids=["few rows", "many rows"])
def test_a_method_that_leaves_candidates_out_is_refused_instead_of_asked_for_ever(prompts: bool) -> None:
    model = accelerate(tiny_llama(), ForgetfulConfig(prompts=prompts))
    with pytest.raises(TargetError, match=r"hold all of canvas\.candidates"):
        generate(model, texts(2, 8), gen_length=8, eos_early_stop=False)


def test_a_model_whose_logits_are_nan_is_refused() -> None:
    model = tiny_llama()
    model.lm_head.weight.data.fill_(torch.nan)
    with pytest.raises(TargetError, match="look for NaN"):
        generate(model, texts(1, 5), gen_length=8)


@pytest.mark.parametrize("method", [None, "dkv-decode"])
def test_what_comes_out_of_a_run_may_be_trained_with(method: str | None) -> None:
    model = tiny_llama()
    kept: list[torch.Tensor] = []

    class Keeping(torch.nn.Module):
        """Rotary tables that are remembered, as the published LLaDA does."""

        def forward(self, *args: Any, **options: Any) -> Any:
            kept.extend(tables := rotary(*args, **options))
            return tables

    rotary, model.model.rotary_emb = model.model.rotary_emb, Keeping()
    if method:
        accelerate(model, method)
    kept.clear()
    seen: list[torch.Tensor] = []
    written = generate(model, texts(2, 6), gen_length=4, callback=lambda _, tokens: seen.append(tokens))
    for tensor in (*kept, *seen, written.sequences, written.lengths):
        assert not tensor.is_inference()
    assert kept


@pytest.mark.parametrize("wrapped", ["before", "after"])
def test_a_model_that_torch_compile_wraps_is_the_model_itself(wrapped: str) -> None:
    model, prompts = tiny_llama(), texts(2, 6)
    expected = generate(accelerate(model, "dkv-decode"), prompts, gen_length=8).sequences
    compiled = torch.compile(restore(model), backend="eager")
    accelerate(compiled if wrapped == "before" else model, "dkv-decode")
    for each in (model, compiled):
        assert torch.equal(generate(each, prompts, gen_length=8).sequences, expected)
        assert report(each).compute_fraction < 1
    with paused(compiled):
        generate(model, prompts, gen_length=4)
    assert report(model).calls == 8
    restore(compiled)
    with pytest.raises(TargetError, match="not accelerated"):
        report(model)


@pytest.mark.parametrize("make", [lambda: torch.nn.Linear(3, 3), pipeline], ids=["layer", "pipeline"])
def test_generate_asks_for_a_language_model(make: Callable[[], Any]) -> None:
    with pytest.raises(TargetError, match="no language model of a known family"):
        generate(make(), texts(1, 5))


def test_guards_compute_everything() -> None:
    model = accelerate(tiny_llama(), "fast-dllm-dual", warmup_steps=3, max_consecutive_reuses=2)
    generate(model, texts(1, 4), gen_length=12, eos_early_stop=False)
    full = [rows == 16 * 3 for rows in report(model).row_layers_of]
    # one block: its first call, the warm-up, then two reuses in a row at most; the block has 12 rows
    assert full == [True, True, True, False, False, True, False, False, True, False, False, True]
