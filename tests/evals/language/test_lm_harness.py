"""lm-evaluation-harness runs a local task file on an accelerated model (with the extra `lm-eval`)."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from diffcache import accelerate, report
from diffcache.evals.language import benchmark as language
from diffcache.evals.language import wordchain

lm_eval = pytest.importorskip("lm_eval")
TASKS = Path(__file__).resolve().parent / "tasks"


def test_a_local_task_is_answered_by_an_accelerated_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval.tasks import TaskManager

    from diffcache.evals.language.lm_harness import DiffusionLM

    monkeypatch.chdir(TASKS)
    model = accelerate(language.load(), "fast-dllm-dual")
    tokenizer = AutoTokenizer.from_pretrained(language.FOLDER)
    found = lm_eval.simple_evaluate(
        DiffusionLM(model, tokenizer, batch_size=2, threshold=0.9),
        tasks=["wordchain"],
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        bootstrap_iters=0,
    )
    assert found["results"]["wordchain"]["right_words,none"] >= 0.95
    assert report(model).calls > 0


def test_likelihoods_are_refused() -> None:
    from diffcache.evals.language.lm_harness import DiffusionLM

    with pytest.raises(NotImplementedError, match="only generation tasks"):
        DiffusionLM(language.load(), None).loglikelihood([])


@pytest.mark.parametrize("many", [False, True], ids=["one", "a list"])
@pytest.mark.parametrize("size", ["max_gen_toks", "max_new_tokens", "max_tokens"])
def test_length_and_stop_strings_as_tasks_write_them(many: bool, size: str) -> None:
    from lm_eval.api.instance import Instance

    from diffcache.evals.language.lm_harness import DiffusionLM

    tokenizer = AutoTokenizer.from_pretrained(language.FOLDER)
    prompt = tokenizer.decode(
        wordchain.prompts(1, language.PROMPT_WORDS, seed=7)[0], skip_special_tokens=True
    )
    lm = DiffusionLM(language.load(), tokenizer, threshold=0.9)

    def answer(**wish: Any) -> str:
        return lm.generate_until([Instance("generate_until", {}, (prompt, wish), 0)], disable_tqdm=True)[0]

    whole = answer(**{size: 24})
    assert len(whole) == 24
    part = whole[9:12]
    assert answer(**{size: 24, "until": ["zzz", part] if many else part}) == whole[: whole.find(part)]
