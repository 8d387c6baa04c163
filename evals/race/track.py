"""One testbed in the race: its full runs and references, and the measurements of contenders on it."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from diffcache.evals.errors import EvaluationError
from diffcache.evals.harness.fewer_steps import OWN, render_with_steps
from diffcache.evals.harness.quality import REFERENCE_STEPS
from diffcache.evals.harness.rendering import Rendered, render
from diffcache.evals.race.autocast import denoising_in
from diffcache.evals.race.contender import Contender, Options, RaceSetup
from diffcache.evals.race.flops import LayerCosts, counted_work, layer_costs
from diffcache.evals.race.row import Reference, Row
from diffcache.evals.race.solvers import solvers
from diffcache.evals.testbeds import splits, zoo

FULL = "full run"
COSTED_STEPS = 2
FEWEST_STEPS = 8
"""A testbed that was distilled to fewer steps has no true solution."""
TRUTHS = 8
"""The first samples of a part, of which pictures of 1000 steps are drawn."""


class Track:
    """A testbed, its full runs, and what everything is compared with.

    Args:
        setup: the testbed, and the steps of the full run.
        kept: folder where pictures of 1000 steps are kept from one session to the next; None: they are not drawn.
        dtype: of the denoiser's matrix products where a contender runs, see `denoising_in`.
    """

    def __init__(
        self, setup: RaceSetup, kept: Path | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        self.setup, self.dtype = setup, dtype
        self._kept = kept
        self._full: dict[splits.Use, Rendered] = {}
        self._references: dict[splits.Use, Reference] = {}

    def measured(self, contender: Contender, options: Options, part: splits.Use) -> Row:
        """A contender at a setting, on a freshly loaded pipeline."""
        rendered, work = self._run(contender, options, self._call(part))
        return Row(
            contender=contender.full_name,
            options=dict(options),
            part=part,
            compute=round(work / self._work(part), 4),
            loop_time=round(rendered.cpu_seconds / self.full(part).cpu_seconds, 3),
            **self.reference(part).figures(rendered.pictures),
        )

    def drawn(self, contender: Contender | None, options: Options, sample: int) -> Tensor:
        """One picture of the scored part; of the full run, where there is no contender."""
        call = self._call("score", _samples("score")[sample : sample + 1])
        return self._run(contender, options, call)[0].pictures[0]

    def pictures(
        self, contender: Contender | None, options: Options, prompts: Sequence[Any], seeds: Sequence[int]
    ) -> tuple[Tensor, float]:
        """Samples in one call on a freshly loaded pipeline; of the full run, where there is no contender.

        Returns:
            Pictures [N, ...] in 0..1, and the compute as a share of the full run's.
        """
        call = zoo.call_for(self.setup.testbed, list(prompts), seeds, self.setup.steps)
        rendered, work = self._run(contender, options, call)
        return rendered.pictures, work / (self._work_of_a_sample * len(prompts))

    def _run(
        self, contender: Contender | None, options: Options, call: dict[str, Any]
    ) -> tuple[Rendered, float]:
        """A call with a contender attached, or none, and its work."""
        pipe = zoo.load(self.setup.testbed)
        pipe.scheduler = solvers(pipe)[options.get("solver", OWN)]
        steps = options.get("steps", self.setup.steps)
        attached = nullcontext() if contender is None else contender.attach(pipe, options, self.setup)
        with denoising_in(pipe, self.dtype), counted_work(pipe, self._costs) as work, attached:
            return render(pipe, {**call, "num_inference_steps": steps}), work.total

    def full_row(self, part: splits.Use) -> Row:
        """The full run as a row: it differs from the true solution only."""
        figures = self.reference(part).figures(self.full(part).pictures)
        return Row(contender=FULL, options={}, part=part, compute=1.0, loop_time=1.0, **figures)

    def full(self, part: splits.Use) -> Rendered:
        if part not in self._full:
            self._full[part] = render(zoo.load(self.setup.testbed), self._call(part))
        return self._full[part]

    def reference(self, part: splits.Use) -> Reference:
        if part not in self._references:
            self._references[part] = Reference(self.full(part).pictures, self._truth(part))
        return self._references[part]

    def has_truth(self, part: splits.Use) -> bool:
        """Whether pictures of 1000 steps are drawn for a part."""
        return self._kept is not None and part != "choose" and self.setup.steps >= FEWEST_STEPS

    def _truth(self, part: splits.Use) -> Tensor | None:
        """Pictures of 1000 steps of the testbed's own noise scheduler."""
        if self._kept is None or not self.has_truth(part):
            return None
        path = self._kept / f"{self.setup.testbed}_{part}.safetensors"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            pipe = zoo.load(self.setup.testbed)
            call = self._call(part, _samples(part)[:TRUTHS])
            pictures = render_with_steps(pipe, call, _most_steps(pipe.scheduler)).pictures
            if not bool(pictures.isfinite().all()):
                raise EvaluationError(
                    f"{self.setup.testbed}: the true solution is not finite: nothing can be compared with it."
                )
            save_file({"pictures": pictures.contiguous()}, path)
        return load_file(path)["pictures"]

    @cached_property
    def _costs(self) -> LayerCosts:
        pipe = zoo.load(self.setup.testbed)
        call = zoo.sample_call(self.setup.testbed, 0, COSTED_STEPS, 1)
        return layer_costs(pipe, lambda: render(pipe, call))

    def _work(self, part: splits.Use) -> float:
        """Of the full run on a part."""
        return self._work_of_a_sample * len(_samples(part))

    @cached_property
    def _work_of_a_sample(self) -> float:
        pipe = zoo.load(self.setup.testbed)
        with counted_work(pipe, self._costs) as work:
            render(pipe, zoo.sample_call(self.setup.testbed, 0, self.setup.steps, 1))
        return work.total

    def _call(self, part: splits.Use, some: range | None = None) -> dict[str, Any]:
        """The pipeline's arguments for the samples of a part, or for some of them."""
        prompts, seed, _ = splits.PARTS[part]
        samples = some or _samples(part)
        asked = zoo.prompts(self.setup.testbed, samples.stop, prompts)[samples.start :]
        seeds = [seed + i for i in samples]
        return zoo.call_for(self.setup.testbed, asked, seeds, self.setup.steps)


def _most_steps(noise_scheduler: Any) -> int:
    """As many as are taken for the true solution. DPM++ divides by zero where it takes as many as it was trained with."""
    trained: int = noise_scheduler.config.num_train_timesteps
    return min(REFERENCE_STEPS, trained - 1)


def _samples(part: splits.Use) -> range:
    samples = splits.PARTS[part].samples
    assert samples is not None
    return samples
