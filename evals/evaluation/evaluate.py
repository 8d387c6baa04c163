"""An evaluation: a pipeline with and without cache on the same prompts and seeds, and every figure that can be measured."""

import hashlib
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diffcache.api import method_named
from diffcache.config import CacheConfig
from diffcache.evals.errors import EvaluationError
from diffcache.evals.evaluation.figures import CACHED, FULL, Metrics, gathered, measured, summary
from diffcache.evals.evaluation.names import PAGE, RESULT
from diffcache.evals.evaluation.sample_folder import (
    MANIFEST,
    ProcessShare,
    SampleFolder,
    check_manifest,
    has_batches,
)
from diffcache.evals.harness.pipelines import Source
from diffcache.evals.harness.prompts import read_prompts
from diffcache.evals.harness.provenance import header
from diffcache.evals.harness.rendering import Rendered, render
from diffcache.evals.harness.results import write_json
from diffcache.evals.metrics.extractors import CLASSIFIER
from diffcache.evals.testbeds import zoo
from diffcache.evals.vbench.naming import check_encoder, export, file_names
from diffcache.evals.vbench.running import CUSTOM, FULL_INFO, STANDARD, check_vbench, vbench_scores
from diffcache.profiling.recording.journal import key_of
from diffcache.profiling.recording.pipeline_facts import facts_of
from diffcache.profiling.recording.processes import this_process
from diffcache.profiling.searching.checkpoints import claim

PIPELINE = "pipeline.json"
"""What the samples of a folder were drawn with: a model may change where it lies."""

OF_METHOD = ("method", "options", "config")
"""What cached samples alone depend on, of a manifest."""


@dataclass(frozen=True)
class Evaluation:
    """What to evaluate.

    Attributes:
        model: a testbed, a folder or a hub id.
        method: its name, or the folder of a saved one; None for what `accelerate(pipe)` uses.
        options: of the method.
        prompts: file of prompts (see `read_prompts`); None for a testbed's held-out ones.
        samples: how many. Sample i has prompt i // samples_per_prompt (from the first again after the last) and seed `seed + i`.
        samples_per_prompt: VBench wants five.
        steps, seed, batch_size: of the calls; steps=None: the pipeline's own number.
        reference: folder of real pictures for the distances; None compares with the full run's pictures.
        extractor: of features, see `Extractor`; None: no distances are measured.
        clip: CLIP model and its weights for the CLIP score; None for none.
        vbench: interpreter of VBench's environment, and dimensions; None for none.
        source: how the pipeline is loaded and called; None: by its name alone.

    Raises:
        EvaluationError: a number is below one.
    """

    model: str
    method: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    prompts: Path | None = None
    samples: int = 64
    samples_per_prompt: int = 1
    steps: int | None = 50
    seed: int = 0
    batch_size: int = 4
    reference: Path | None = None
    extractor: str | None = CLASSIFIER
    clip: tuple[str, str | None] | None = None
    vbench: tuple[Path, list[str]] | None = None
    source: Source | None = None

    def __post_init__(self) -> None:
        for name in ("samples", "samples_per_prompt", "steps", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise EvaluationError(f"{name} must be at least 1, not {value}.")

    def config(self) -> CacheConfig:
        """The method.

        Raises:
            ConfigError: there is no method of that name, an unknown option, or a value out of range.
            ScheduleError: nothing is saved in that folder.
        """
        return method_named(self.method, **self.options)

    @property
    def loading(self) -> Source:
        """How the pipeline is loaded and called."""
        return replace(self.source or Source(self.model), steps=self.steps)

    def sample_prompts(self) -> list[Any]:
        """The prompt of every sample.

        Raises:
            EvaluationError: the prompts cannot be read, or there are none for this model.
        """
        if self.prompts is not None:
            known = read_prompts(self.prompts)
        elif self.model in zoo.NAMES:
            known = zoo.prompts(self.model, -(-self.samples // self.samples_per_prompt), "heldout")
        else:
            raise EvaluationError(f"{self.model} is no testbed: name a file of prompts.")
        return [known[i // self.samples_per_prompt % len(known)] for i in range(self.samples)]

    def manifest(self) -> dict[str, Any]:
        """What the samples depend on."""
        config = self.config()
        return {
            **self.loading.as_json(),
            "method": config.name,
            "options": config.options(),
            "config": key_of("config", config=config),
            "prompts": hashlib.sha256(json.dumps(self.sample_prompts()).encode()).hexdigest(),
            "samples": self.samples,
            "samples_per_prompt": self.samples_per_prompt,
            "steps": self.steps,
            "seed": self.seed,
            "batch_size": self.batch_size,
        }


def evaluate(evaluation: Evaluation, folder: Path) -> dict[str, Any] | None:
    """Generates what is missing, measures, and writes `evaluation.json`; under `accelerate launch` in all processes.

    Returns:
        The result, in the main process; None in the others.

    Raises:
        EvaluationError: this is no `Evaluation`; a file, weights or samples are missing or unreadable. Then there is no
            `evaluation.json`. Or the folder has a page of somebody else.
        ScheduleError: the folder has samples of other weights or of another noise scheduler.
    """
    if not isinstance(evaluation, Evaluation):
        raise EvaluationError(
            "evaluate() takes a diffcache.evals.evaluation.evaluate.Evaluation, which names the model and the method, not a "
            f"{type(evaluation).__name__}."
        )
    state = this_process()
    share = ProcessShare(state.process_index, state.num_processes)
    prompts = evaluation.sample_prompts()
    metrics = Metrics.load(evaluation.extractor, evaluation.reference, evaluation.clip)
    if evaluation.vbench is not None:
        check_vbench(*evaluation.vbench)
        check_encoder()
        file_names(map(str, prompts))
    with state.main_process_first():
        manifest = evaluation.manifest()
        _refuse_foreign_page(folder)
        check_manifest(folder, manifest, _free(folder, manifest))
        for stale in (RESULT, PAGE):
            (folder / stale).unlink(missing_ok=True)
    folders = {
        name: SampleFolder(folder / name, evaluation.samples, evaluation.batch_size)
        for name in (FULL, CACHED)
    }
    pipe = evaluation.loading.load(state.device)
    with state.main_process_first():
        if not has_batches(folder / FULL):
            (folder / PIPELINE).unlink(missing_ok=True)
        claim(folder / PIPELINE, facts_of(pipe), "an evaluation")
    folders[FULL].generate(_renderer(evaluation, pipe, prompts, None), share)
    folders[CACHED].generate(_renderer(evaluation, pipe, prompts, evaluation.config()), share)
    state.wait_for_everyone()
    values = gathered(measured(folders, prompts, metrics, share))
    if not state.is_main_process:
        return None
    result = {
        "header": {**header(str(state.device)), "processes": state.num_processes},
        "manifest": manifest,
        "prompts": prompts,
        **summary(folders, values, metrics),
        "vbench": {name: _vbench(evaluation, samples, prompts) for name, samples in folders.items()},
    }
    write_json(folder / RESULT, result)
    return result


def _refuse_foreign_page(folder: Path) -> None:
    """Refuses to write over a page in a folder that no evaluation has begun in: its name is a common one."""
    page = folder / PAGE
    if page.exists() and not any((folder / name).exists() for name in (MANIFEST, RESULT)):
        raise EvaluationError(
            f"{page} is not of an evaluation, and would be written over: choose another folder."
        )


def _free(folder: Path, manifest: dict[str, Any]) -> Collection[str]:
    """What no finished sample of a folder depends on, as after a method that was refused: the method; all where nothing is finished."""
    if has_batches(folder / CACHED):
        return ()
    return OF_METHOD if has_batches(folder / FULL) else manifest.keys()


def _renderer(
    evaluation: Evaluation, pipe: Any, prompts: list[Any], config: CacheConfig | None
) -> Callable[[list[int]], Rendered]:
    """Renders samples by their numbers, with a method or (None) in full."""

    def rendered(indices: list[int]) -> Rendered:
        seeds = (evaluation.seed + i for i in indices)
        call = evaluation.loading.call_for(pipe, [prompts[i] for i in indices], seeds)
        return render(pipe, call, config)

    return rendered


def _vbench(evaluation: Evaluation, samples: SampleFolder, prompts: list[Any]) -> dict[str, float]:
    """Scores of a folder's videos by dimension; none where VBench was not asked for."""
    if evaluation.vbench is None:
        return {}
    videos = ((name, samples.sample(i)) for i, name in enumerate(file_names(prompts)))
    standard = evaluation.prompts is not None and evaluation.prompts.name == FULL_INFO
    folder = export(videos, samples.folder / "vbench")
    return vbench_scores(*evaluation.vbench, folder, STANDARD if standard else CUSTOM)
