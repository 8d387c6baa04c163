"""lm-evaluation-harness runs a local task file on an accelerated model (with the extra `lm-eval`)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

from diffcache import accelerate, report
from diffcache.evals.language import benchmark as language
from diffcache.evals.language import likelihood, wordchain

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


class Independent(nn.Module):
    """Says the same of each masked position, whatever stands elsewhere: its likelihoods are known."""

    def __init__(self, shift: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(16, 8))
        self.shift = shift

    def call(self, tokens: Tensor, real: None, block: None) -> Tensor:
        rows = self.table[self.shift : self.shift + tokens.shape[1]]
        return rows.expand(len(tokens), -1, -1)


def bound(
    shift: int, monkeypatch: pytest.MonkeyPatch, context: list[int], target: list[int]
) -> tuple[float, float]:
    """The bound, and the likelihood that it bounds: here they are equal in the mean over draws."""
    model = Independent(shift)
    net = SimpleNamespace(call=model.call, token_shift=shift, block_attention=None)
    monkeypatch.setattr(likelihood, "backbone_of", lambda model: net)
    found = likelihood.likelihood_bound(
        model, torch.tensor(context), torch.tensor(target), mask_id=0, draws=4096, batch=64
    )
    said = model.table.detach().log_softmax(-1)
    return found, float(sum(said[len(context) + i, token] for i, token in enumerate(target)))


@pytest.mark.parametrize("shift", [0, 1])
def test_the_bound_is_the_likelihood_where_tokens_are_independent(
    shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, exact = bound(shift, monkeypatch, [3, 4], [5, 6, 7, 1, 2])
    assert abs(found - exact) < 0.2
    found, exact = bound(shift, monkeypatch, [3, 4], [5])
    assert abs(found - exact) < 1e-5


def test_as_many_tokens_are_masked_as_lladas_code_says() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        assert sorted(likelihood.masked_counts(6, 6, generator).tolist()) == [1, 2, 3, 4, 5, 6]
        spread = likelihood.masked_counts(100, 4, generator).sort().values
        assert spread.diff().tolist() == [25, 25, 25]


def test_the_likelier_answer_has_the_larger_bound() -> None:
    from lm_eval.api.instance import Instance

    from diffcache.evals.language.lm_harness import DiffusionLM

    tokenizer = AutoTokenizer.from_pretrained(language.FOLDER)
    prompt = tokenizer.decode(
        wordchain.prompts(1, language.PROMPT_WORDS, seed=7)[0], skip_special_tokens=True
    )
    lm = DiffusionLM(language.load(), tokenizer, mc_num=32)
    right = lm.generate_until(
        [Instance("generate_until", {}, (prompt, {"max_gen_toks": 8}), 0)], disable_tqdm=True
    )[0]
    requests = [Instance("loglikelihood", {}, (prompt, each), 0) for each in (right, right[::-1])]
    (likely, writes), (unlikely, writes_not) = lm.loglikelihood(requests, disable_tqdm=True)
    assert likely > unlikely + 5
    assert (writes, writes_not) == (True, False)
    whole = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (prompt,), 0)], disable_tqdm=True)
    assert whole[0] < 0


@pytest.mark.slow
def test_its_own_command_line_with_a_chat_template(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(language.FOLDER, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    arguments = [
        "--tasks",
        "wordchain",
        "--include_path",
        str(TASKS),
        "--apply_chat_template",
        "--limit",
        "2",
    ]
    given = f"pretrained={folder},method=fast-dllm-dual,threshold=0.9"
    program = [sys.executable, "-m", "diffcache.evals.language.lm_harness", "run", "--model", "diffcache"]
    done = subprocess.run(
        [*program, "--model_args", given, *arguments, "--output_path", str(tmp_path / "out")],
        cwd=TASKS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "right_words" in done.stdout
    saved = json.loads(next((tmp_path / "out").rglob("*.json")).read_text())
    assert saved["results"]["wordchain"]["right_words,none"] >= 0.9
    assert "message['content']" in saved["chat_template"]


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
