"""lm-evaluation-harness runs a local task file on an accelerated model (with the extra `lm-eval`)."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from diffcache import accelerate, report
from diffcache.evals import language

lm_eval = pytest.importorskip("lm_eval")
TASKS = Path(__file__).resolve().parent / "tasks"


def test_a_local_task_is_answered_by_an_accelerated_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval.tasks import TaskManager

    from diffcache.evals.lm_harness import DiffusionLM

    monkeypatch.chdir(TASKS)
    model = accelerate(language.load(), "fast-dllm-dual")
    tokenizer = AutoTokenizer.from_pretrained(language.FOLDER)
    found = lm_eval.simple_evaluate(
        DiffusionLM(model, tokenizer, batch_size=2, block_length=32, threshold=0.9),
        tasks=["wordchain"],
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        bootstrap_iters=0,
    )
    assert found["results"]["wordchain"]["right_words,none"] >= 0.95
    assert report(model).calls > 0


def test_likelihoods_are_refused() -> None:
    from diffcache.evals.lm_harness import DiffusionLM

    with pytest.raises(NotImplementedError, match="only generation tasks"):
        DiffusionLM(language.load(), None).loglikelihood([])
