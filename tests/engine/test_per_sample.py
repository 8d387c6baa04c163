"""With `per_sample` no image depends on its neighbours in the batch; by default one decision holds for all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from support.harness import render
from support.toys import MARKS, by_embeds, toy_pipeline
from torch import Tensor, nn
from zoo.pipelines import CASES

from diffcache import CacheConfig, ConfigError, EasyCacheConfig, accelerate, denoising_run, report
from diffcache.config import RunFacts
from diffcache.engine.whole_model import NO_ROWS
from diffcache.schedulers.base import CacheScheduler
from diffcache.schedulers.steps import Decision, Step

STEPS = 10
OPTIONS = {"threshold": 0.25, "warmup_steps": 0}
CASES_OF = {
    "FluxPipeline": ((16, 16), ("prompt_embeds", "pooled_prompt_embeds")),
    "StableDiffusionPipeline": ((4, 8, 8), ("prompt_embeds", "negative_prompt_embeds")),
    "WanPipeline": ((16, 2, 2, 2), ("prompt_embeds", "negative_prompt_embeds")),
}
"""The shape of one latent, and the arguments that have one row per image."""
NOT_MODELLED = {
    "LTX2Pipeline": "two latents",
    "LTX2Pipeline-three-passes": "two latents",
    "ZImagePipeline": "latents in a list",
    "StableDiffusionControlNetPipeline": "computes until it has learned which arguments always change",
}
BATCHED = [name for name, case in CASES.items() if case.guidance == "batched" and name not in NOT_MODELLED]
each_case = pytest.mark.parametrize("name", CASES_OF)


def batch(name: str, size: int = 3) -> dict[str, Tensor]:
    """Latents of very different sizes, each with a prompt of its own."""
    shape, rows = CASES_OF[name]
    given = CASES[name].call(0, 1)
    generator = torch.Generator().manual_seed(5)
    scales = torch.tensor([1.0, 0.2, 5.0, 2.0, 0.5, 8.0])[:size]
    call = {"latents": torch.randn(size, *shape, generator=generator) * scales.reshape(-1, *[1] * len(shape))}
    for key in rows:
        noise = torch.randn(size, *given[key].shape[1:], generator=generator)
        call[key] = given[key] + noise / 2
    return call


def twice(name: str) -> dict[str, Any]:
    """The arguments of a call for two samples."""
    given = CASES[name].call(0, 1)
    rows = {key: value for key, value in given.items() if isinstance(value, Tensor) and len(value) == 1}
    labels = {key: value for key, value in given.items() if isinstance(value, list) and len(value) == 1}
    return {key: torch.cat([value, value]) for key, value in rows.items()} | {
        key: value * 2 for key, value in labels.items()
    }


def row(call: dict[str, Tensor], i: int) -> dict[str, Tensor]:
    return {key: value[i : i + 1] for key, value in call.items()}


def cached(name: str, **options: Any) -> Any:
    return accelerate(CASES[name].build(), "easycache", **{**OPTIONS, **options})


class Rows:
    """Counts the samples that reach a denoiser's forward."""

    def __init__(self, module: nn.Module) -> None:
        self.count = 0
        module.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        latent = args[0] if args else kwargs.get("hidden_states", kwargs.get("sample"))
        self.count += len(latent)


@each_case
def test_each_image_equals_its_solo_run(name: str) -> None:
    call = batch(name)
    together = cached(name, per_sample=True)
    rows = Rows(together.components[CASES[name].denoisers[0]])
    images = render(together, name, steps=STEPS, **call)
    told = report(together)

    alone = cached(name, per_sample=True)
    solo_rows, decisions = 0, []
    for i in range(3):
        image = render(alone, name, steps=STEPS, **row(call, i))
        torch.testing.assert_close(images[i : i + 1], image, rtol=1e-4, atol=1e-4)
        calls = report(alone).calls
        assert {c.computed for c in calls} == {0, 1}  # both halves of a batch of guidance passes alike
        solo_rows += sum(round(c.computed * (2 if "StableDiff" in name else 1)) for c in calls)
        decisions.append([c.computed for c in calls])
    assert len({tuple(decided) for decided in decisions}) > 1, "the samples should not all decide alike"
    assert any(0 < c.computed < 1 for c in told.calls)
    assert rows.count == solo_rows
    per_call = 6 if "StableDiff" in name else 3
    assert rows.count == round(sum(c.computed * per_call for c in told.calls))
    assert told.compute_fraction == pytest.approx(rows.count / (per_call * len(told.calls)))


@each_case
def test_by_default_the_batch_decides_as_one(name: str) -> None:
    together = cached(name)
    render(together, name, steps=STEPS, **batch(name))
    assert all(c.computed in (0, 1) for c in report(together).calls)
    assert 0 < report(together).compute_fraction < 1


def test_by_default_images_depend_on_their_neighbours_as_documented() -> None:
    name = "FluxPipeline"
    images = render(cached(name), name, steps=STEPS, **batch(name))
    alone = render(cached(name), name, steps=STEPS, **row(batch(name), 0))
    assert not torch.allclose(images[:1], alone, rtol=1e-4, atol=1e-4)
    assert "neighbours in the batch" in (EasyCacheConfig.__doc__ or "")


@each_case
def test_all_compute_is_exact(name: str) -> None:
    call = batch(name)
    pipe = cached(name, per_sample=True, threshold=0)
    assert torch.equal(render(pipe, name, **call), render(CASES[name].build(), name, **call))
    assert report(pipe).compute_fraction == 1


def test_as_many_images_as_tokens_are_refused() -> None:
    """Six images are as many as the prompt has tokens: which arguments have a row for each image cannot be told."""
    with pytest.raises(ConfigError, match="per_sample"):
        render(
            cached("FluxPipeline", per_sample=True), "FluxPipeline", steps=STEPS, **batch("FluxPipeline", 6)
        )


@pytest.mark.parametrize("size", [1, 2, 4])
def test_other_batch_sizes(size: int) -> None:
    name = "FluxPipeline"
    call = batch(name, size)
    images = render(cached(name, per_sample=True), name, steps=STEPS, **call)
    alone = cached(name, per_sample=True)
    for i in range(size):
        image = render(alone, name, steps=STEPS, **row(call, i))
        torch.testing.assert_close(images[i : i + 1], image, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("contexts", [True, False], ids=["named", "unnamed"])
@pytest.mark.parametrize("batched", [True, False], ids=["batched", "two-pass"])
def test_no_sample_gets_the_feature_of_another(batched: bool, contexts: bool) -> None:
    """In exact arithmetic: three latents, and prompts that differ by sample and guidance pass."""
    shift = torch.tensor([0.0, 16.0, -32.0]).reshape(3, 1, 1)
    embeds = {
        name: {"encoder_hidden_states": given["encoder_hidden_states"] + (1 + MARKS[name]) * shift}
        for name, given in by_embeds().items()
    }
    latents = torch.arange(24.0).reshape(3, 2, 4) * torch.tensor([1.0, 4.0, 256.0]).reshape(3, 1, 1)
    call = {"embeds": embeds, "latents": latents, "batched": batched, "contexts": contexts}
    pipe = accelerate(toy_pipeline(), "easycache", threshold=0.75, warmup_steps=0, per_sample=True)
    assert torch.equal(pipe(**call), toy_pipeline()(**call))
    assert any(0 < c.computed < 1 for c in report(pipe).calls)


# -- every kind of batch, against an independent model ------------------------------------------------------------


class Alternate(CacheScheduler):
    """Computes a sample at every other tick, neighbours in turn."""

    def __init__(self, lane: int) -> None:
        self.lane = lane

    def decide(self, step: Step, signal: Sequence[float] | None) -> Decision:
        return Decision.PREDICT if (step.tick + self.lane) % 2 else Decision.COMPUTE


@dataclass(frozen=True, kw_only=True)
class AlternateConfig(CacheConfig):
    """Samples take turns."""

    name: ClassVar[str] = "alternate"

    @property
    def per_sample(self) -> bool:
        return True

    tail_steps: int = 0
    lanes: Iterator[int] = field(default_factory=itertools.count)

    def scheduler(self, run: RunFacts) -> CacheScheduler:
        return Alternate(next(self.lanes))

    def warmup(self, run: RunFacts) -> int:
        return 1


@contextmanager
def alternating_by_hand(module: nn.Module) -> Iterator[None]:
    """Both samples are computed, and the one whose turn it is not gets the sum of latent and held residual instead."""
    forward, calls = module.forward, itertools.count()
    residuals: list[Tensor] = []

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        tick, output = next(calls), forward(*args, **kwargs)
        latent = args[0] if args else kwargs.get("hidden_states", kwargs.get("sample"))
        base = fitted(latent, output[0]).double()
        new = output[0].double() - base
        turn = (tick + torch.arange(len(new))) % 2 == 0  # of two samples, in both halves
        mask = turn.reshape(-1, *[1] * (new.ndim - 1)) if tick else torch.ones(())
        residuals[:] = [torch.where(mask > 0, new, residuals[0] if tick else new)]
        value = (base + residuals[0]).to(output[0].dtype)
        return (value,) if isinstance(output, tuple) else type(output)(value)

    module.forward = wrapped
    try:
        yield
    finally:
        del module.forward


def fitted(latent: Tensor, like: Tensor) -> Tensor:
    """The latent, cut or padded with zeros to the output's channels."""
    base, both = (
        torch.zeros_like(like),
        tuple(slice(min(p)) for p in zip(latent.shape, like.shape, strict=True)),
    )
    base[both] = latent[both]
    return base


@pytest.mark.parametrize("name", BATCHED)
def test_a_batch_is_split_and_joined_again_or_refused(name: str) -> None:
    case = CASES[name]
    plain = case.build()
    with alternating_by_hand(plain.components[case.denoisers[0]]):
        expected = render(plain, name, **twice(name))
    pipe = accelerate(case.build(), AlternateConfig())
    rows = Rows(pipe.components[case.denoisers[0]])
    try:
        image = render(pipe, name, **twice(name))
    except ValueError as error:
        assert "per_sample" in str(error)  # noqa: PT017
        return
    torch.testing.assert_close(image, expected, rtol=1e-4, atol=1e-4)
    told = report(pipe)
    assert rows.count == sum(round(4 * c.computed) for c in told.calls) == 4 + 2 * (told.num_ticks - 1)


@pytest.mark.parametrize("name", ["ZImagePipeline"])
def test_batches_that_cannot_be_split_are_refused(name: str) -> None:
    pipe = accelerate(CASES[name].build(), "easycache", per_sample=True)
    with pytest.raises(ValueError, match="per_sample"):
        render(pipe, name)


class Extra(nn.Module):
    """Returns something else beside the picture."""

    def __init__(self, extra: Tensor) -> None:
        super().__init__()
        self.extra = extra

    def forward(self, sample: Tensor, timestep: Tensor) -> tuple[Tensor, Tensor]:
        return sample * 0.9, self.extra


@pytest.mark.parametrize("shape", [(), (1, 4), (5,)])
def test_outputs_without_a_row_for_each_sample_are_computed_and_the_report_says_why(
    shape: tuple[int, ...],
) -> None:
    net = accelerate(Extra(torch.ones(shape)).eval(), "easycache", per_sample=True, **OPTIONS)
    x = torch.randn(3, 3, 8) * torch.tensor([1.0, 0.01, 5.0])[:, None, None]
    with torch.no_grad(), denoising_run(net, STEPS) as run:
        for i in range(STEPS):
            run.begin_step(i)
            x = x - net(x, torch.ones(3))[0] / 10
    assert report(net).compute_fraction == 1
    assert NO_ROWS in report(net).reasons
