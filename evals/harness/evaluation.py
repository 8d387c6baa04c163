"""An evaluation: a pipeline with and without cache on the same prompts and seeds, and every figure that can be had."""

import hashlib
import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from diffcache.config import CacheConfig
from diffcache.evals.harness.generation import Arm, Share, check_manifest, write_json
from diffcache.evals.harness.measuring import CACHED, FULL, Judges, gathered, measured, summary
from diffcache.evals.harness.prompts import read_prompts
from diffcache.evals.harness.provenance import provenance
from diffcache.evals.harness.rendering import Rendered
from diffcache.evals.harness.subject import Subject
from diffcache.evals.metrics.errors import EvaluationError
from diffcache.evals.metrics.extractors import CLASSIFIER
from diffcache.evals.testbeds import zoo
from diffcache.evals.vbench.naming import check_encoder, export, file_names
from diffcache.evals.vbench.running import CUSTOM, FULL_INFO, STANDARD, check_vbench, vbench_scores
from diffcache.recipes.builtin import DEFAULT

RESULT, PAGE = "evaluation.json", "report.html"


@dataclass(frozen=True)
class Evaluation:
    """What to evaluate.

    Attributes:
        model: a testbed, a folder or a hub id.
        method: its name; None for what `accelerate(pipe)` uses.
        options: the method's.
        prompts: file of prompts (see `read_prompts`); None for a testbed's held-out ones.
        samples: how many; sample i is made from prompt i // takes (prompts repeat) and from `seed + i`.
        takes: samples of each prompt; VBench wants five.
        steps, seed, batch_size: of the calls.
        reference: folder of real pictures for the distances; None compares with the full run's pictures.
        extractor: of features, see `Extractor`.
        clip: CLIP model and its weights for the CLIP score; None for none.
        vbench: interpreter of VBench's environment, and dimensions; None for none.

    Raises:
        EvaluationError: a number is below one.
    """

    model: str
    method: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    prompts: Path | None = None
    samples: int = 64
    takes: int = 1
    steps: int = 50
    seed: int = 0
    batch_size: int = 4
    reference: Path | None = None
    extractor: str = CLASSIFIER
    clip: tuple[str, str | None] | None = None
    vbench: tuple[Path, list[str]] | None = None

    def __post_init__(self) -> None:
        for name in ("samples", "takes", "steps", "batch_size"):
            if getattr(self, name) < 1:
                raise EvaluationError(f"{name} must be at least 1, not {getattr(self, name)}.")

    def config(self) -> CacheConfig:
        """The method.

        Raises:
            EvaluationError: there is no method of that name.
            ConfigError: an unknown option, or a value out of range.
        """
        if self.method is None:
            return DEFAULT.replace(**self.options)
        methods = CacheConfig.methods()
        if self.method not in methods:
            raise EvaluationError(f"no method is called {self.method!r}; there are {', '.join(methods)}.")
        return methods[self.method].of(**self.options)

    def asked(self) -> list[Any]:
        """The prompt of every sample.

        Raises:
            EvaluationError: the prompts cannot be read, or there are none for this model.
        """
        if self.prompts is not None:
            known = read_prompts(self.prompts)
        elif self.model in zoo.NAMES:
            known = zoo.prompts(self.model, -(-self.samples // self.takes), "heldout")
        else:
            raise EvaluationError(f"{self.model} is no testbed: name a file of prompts.")
        return [known[i // self.takes % len(known)] for i in range(self.samples)]

    def manifest(self) -> dict[str, Any]:
        """What the samples depend on."""
        config = self.config()
        return {
            "model": self.model,
            "method": config.name,
            "options": config.options(),
            "prompts": hashlib.sha256(json.dumps(self.asked()).encode()).hexdigest(),
            "samples": self.samples,
            "takes": self.takes,
            "steps": self.steps,
            "seed": self.seed,
            "batch_size": self.batch_size,
        }


def evaluate(evaluation: Evaluation, folder: Path) -> dict[str, Any] | None:
    """Generates what is missing, measures, and writes `evaluation.json`; under `accelerate launch` in all processes.

    Returns:
        The result, in the main process; None in the others.

    Raises:
        EvaluationError: a file, weights or samples are missing or unreadable. Then there is no `evaluation.json`.
    """
    # Only when told that it is on the CPU does it look for other processes there.
    state = PartialState(cpu=not torch.accelerator.is_available())
    share = Share(state.process_index, state.num_processes)
    prompts, config = evaluation.asked(), evaluation.config()
    judges = Judges.make(evaluation.extractor, evaluation.reference, evaluation.clip)
    if evaluation.vbench is not None:
        check_vbench(*evaluation.vbench)
        check_encoder()
        file_names(map(str, prompts))
    with state.main_process_first():
        check_manifest(folder, evaluation.manifest())
        for stale in (RESULT, PAGE):
            (folder / stale).unlink(missing_ok=True)
    arms = {name: Arm(folder / name, evaluation.samples, evaluation.batch_size) for name in (FULL, CACHED)}
    subject = Subject(evaluation.model, evaluation.steps, state.device)
    for arm, method in ((arms[FULL], None), (arms[CACHED], config)):
        arm.generate(partial(_render, subject, prompts, evaluation.seed, method), share)
    state.wait_for_everyone()
    values = gathered(measured(arms, prompts, judges, share))
    if not state.is_main_process:
        return None
    result = {
        "manifest": evaluation.manifest(),
        "provenance": {**provenance(str(state.device)), "processes": state.num_processes},
        "prompts": prompts,
        **summary(arms, values, judges),
        "vbench": {name: _vbench(evaluation, arm, prompts) for name, arm in arms.items()},
    }
    write_json(folder / RESULT, result)
    return result


def _render(
    subject: Subject, prompts: list[Any], seed: int, config: CacheConfig | None, indices: list[int]
) -> Rendered:
    return subject.render([prompts[i] for i in indices], [seed + i for i in indices], config)


def _vbench(evaluation: Evaluation, arm: Arm, prompts: list[Any]) -> dict[str, float]:
    """Scores of an arm's videos by dimension; none where VBench was not asked for."""
    if evaluation.vbench is None:
        return {}
    videos = ((name, arm.sample(i)) for i, name in enumerate(file_names(prompts)))
    standard = evaluation.prompts is not None and evaluation.prompts.name == FULL_INFO
    folder = export(videos, arm.folder / "vbench")
    return vbench_scores(*evaluation.vbench, folder, STANDARD if standard else CUSTOM)
