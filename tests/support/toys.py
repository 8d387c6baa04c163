"""A toy pipeline in exact arithmetic: any reuse across guidance passes, prompts or runs changes its picture.

The denoiser returns its latent plus a number that only the conditioning decides, so the residual of a guidance pass
never changes. All values are small multiples of 1/32, so nothing is ever rounded: a cached render equals the plain one
to the bit, unless a pass was given another pass's feature.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from diffusers import DiffusionPipeline, ModelMixin, SchedulerMixin
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.cache_utils import CacheMixin
from torch import Tensor, nn

MARKS = {"cond": 3.0, "uncond": -5.0, "skip": 7.0}
"""What the conditioning of each guidance pass is filled with."""

Passes = Callable[[int], Sequence[str]]


class ToyDenoiser(ModelMixin, ConfigMixin, CacheMixin):
    """v = x + weight * (mean of the embedding + label + a bonus for skipped layers), for each sample."""

    @register_to_config
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor | None = None,
        class_labels: Tensor | None = None,
        skip_layers: list[int] | None = None,
        return_dict: bool = False,
    ) -> tuple[Tensor]:
        shift = hidden_states.new_zeros(len(hidden_states))
        if encoder_hidden_states is not None:
            shift = shift + encoder_hidden_states.mean(dim=(1, 2))
        if class_labels is not None:
            shift = shift + class_labels
        if skip_layers:
            shift = shift + 11
        return (hidden_states + (self.weight * shift)[:, None, None],)


class ToyScheduler(SchedulerMixin, ConfigMixin):
    """Moves the latent by 1/8 of what the denoiser added to it."""

    order = 1

    @register_to_config
    def __init__(self, num_train_timesteps: int = 1024) -> None:
        self.set_timesteps(1)

    def set_timesteps(self, num_inference_steps: int, device: Any = None) -> None:
        self.sigmas = torch.linspace(1, 0, num_inference_steps + 1)
        self.timesteps = self.sigmas[:-1] * self.config.num_train_timesteps

    def step(self, model_output: Tensor, timestep: Tensor, sample: Tensor) -> tuple[Tensor]:
        return (sample + (model_output - sample) / 8,)


class ToyPipeline(DiffusionPipeline):
    """Makes any guidance passes, in any order, at each step, and tells them apart in any way."""

    def __init__(self, transformer: ToyDenoiser, scheduler: ToyScheduler) -> None:
        super().__init__()
        self.register_modules(transformer=transformer, scheduler=scheduler)

    @torch.no_grad()
    def __call__(
        self,
        embeds: dict[str, dict[str, Any]],
        passes: Passes = lambda step: ("cond", "uncond"),
        num_inference_steps: int = 8,
        latents: Tensor | None = None,
        contexts: bool = True,
        remade: bool = False,
        batched: bool = False,
        loops: int = 1,
        steps_a_copy: bool = False,
        callback_on_step_end: Callable[..., Any] | None = None,
    ) -> Tensor:
        """`embeds` gives each pass its keyword arguments of the denoiser, `passes` the passes of each step."""
        self.embeds = embeds
        x = torch.arange(8.0).reshape(1, 2, 4) if latents is None else latents
        self.num_timesteps = num_inference_steps
        for _ in range(loops):
            self.scheduler.set_timesteps(num_inference_steps)
            copied = copy.deepcopy(self.scheduler)
            for step, t in enumerate(self.scheduler.timesteps):
                outputs = self.evaluate(x, t, passes(step), contexts, remade, batched)
                guided = outputs.get("cond", x)
                for name, output in outputs.items():
                    guided = guided if name == "cond" else guided + 2 * (guided - output)
                x = (copied if steps_a_copy else self.scheduler).step(guided, t, x)[0]
                if callback_on_step_end is not None:
                    callback_on_step_end(self, step, t, {})
        return x

    def evaluate(
        self, x: Tensor, t: Tensor, names: Sequence[str], contexts: bool, remade: bool, batched: bool
    ) -> dict[str, Tensor]:
        """What the denoiser says in each guidance pass."""
        named = {name: dict(self.embeds[name]) for name in names}
        if remade:
            named = {name: {k: _anew(v) for k, v in given.items()} for name, given in named.items()}
        return self.batch(x, t, named) if batched else self.one_by_one(x, t, named, contexts)

    def one_by_one(self, x: Tensor, t: Tensor, named: dict[str, Any], contexts: bool) -> dict[str, Tensor]:
        outputs = {}
        for name, given in named.items():
            with self.transformer.cache_context(name) if contexts else nullcontext():
                outputs[name] = self.transformer(x, t.expand(len(x)), **given)[0]
        return outputs

    def batch(self, x: Tensor, t: Tensor, named: dict[str, Any]) -> dict[str, Tensor]:
        keys = next(iter(named.values()))
        given = {key: torch.cat([arguments[key] for arguments in named.values()]) for key in keys}
        rows = torch.cat([x] * len(named))
        output = self.transformer(rows, t.expand(len(rows)), **given)[0]
        return dict(zip(named, output.chunk(len(named)), strict=True))


def toy_pipeline(transformer: ToyDenoiser | None = None) -> ToyPipeline:
    pipe = ToyPipeline((transformer or ToyDenoiser()).eval(), ToyScheduler())
    pipe.set_progress_bar_config(disable=True)
    return pipe


def by_embeds(**marks: float) -> dict[str, dict[str, Any]]:
    """Passes that differ in their embedding."""
    return {
        name: {"encoder_hidden_states": torch.full((1, 2, 4), mark)}
        for name, mark in {**MARKS, **marks}.items()
    }


def by_labels() -> dict[str, dict[str, Any]]:
    """Passes that differ in a class label only."""
    return {name: {"class_labels": torch.tensor([mark])} for name, mark in MARKS.items()}


def by_skipped_layers() -> dict[str, dict[str, Any]]:
    """Passes of which one shares its embedding with another and skips layers."""
    embeds = by_embeds()
    return {**embeds, "skip": {**embeds["cond"], "skip_layers": [1, 2]}}


def _anew(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
