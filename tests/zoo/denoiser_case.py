"""What a tiny denoiser of the zoo is, and how to run it in a loop as a pipeline would."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from zoo.weights import tiny

Kwargs = dict[str, Any]
Inputs = Callable[[torch.Generator, int], Kwargs]
Advance = Callable[[Kwargs, list[Tensor], int, int], Kwargs]


def thousand(num_steps: int) -> list[float]:
    """Times from 1000 down, as most noise schedulers count."""
    return [1000.0 - round(1000 * i / num_steps) for i in range(num_steps)]


def train_steps(num_steps: int) -> list[float]:
    """Whole times from 999 down, for denoisers that look their time up in a table."""
    return [max(time - 1, 0.0) for time in thousand(num_steps)]


def unit(num_steps: int) -> list[float]:
    """Times from 1 down, as in flow matching."""
    return [1.0 - i / num_steps for i in range(num_steps)]


def rising(num_steps: int) -> list[float]:
    """Times from 0 up: these families count from noise to data."""
    return [i / num_steps for i in range(num_steps)]


def tensors(value: Any) -> list[Tensor]:
    """All tensors in a forward's result, in order; `None` and everything else is dropped."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif not isinstance(value, (list, tuple)):
        return []
    return [tensor for part in value for tensor in tensors(part)]


def like(value: Any, make: Callable[[Tensor], Any]) -> Any:
    """`value` with `make` applied to each tensor of a nest of lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        return make(value)
    if isinstance(value, dict):
        return {key: like(part, make) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(like(part, make) for part in value)
    return value


def euler(latent: Tensor, output: Tensor, num_steps: int) -> Tensor:
    """One Euler step on what the two have in common.

    An output with fewer channels updates the first channels only; of one with more, the first are used.
    """
    common = tuple(slice(0, min(a, b)) for a, b in zip(latent.shape, output.shape, strict=True))
    moved = latent.clone()
    moved[common] -= output[common].to(latent.dtype) / num_steps
    return moved


@dataclass(frozen=True)
class Case:
    """A tiny denoiser and how a pipeline calls it.

    Fields:
        name: the class, with a suffix where a class has several cases.
        build: makes a fresh seeded instance; keyword arguments replace entries of the configuration.
        inputs: (generator, batch) -> all keyword arguments of the first forward.
        latents: the arguments that hold what evolves, tensors or lists of tensors.
        time: the arguments that hold the time; all get the same value.
        next_time: the argument that holds the time where this step ends, or "".
        time_values: number of steps -> raw times in the unit that the denoiser expects.
        text: the arguments that differ between guidance branches.
        output: result of a forward -> its tensors in order.
        step: what replaces the Euler update, or None.
        notes: how its data flows, where that is out of the ordinary.
        exported: the name that Diffusers exports at its top level, or None.
    """

    name: str
    build: Callable[..., nn.Module]
    inputs: Inputs
    latents: tuple[str, ...] = ("hidden_states",)
    time: tuple[str, ...] = ("timestep",)
    next_time: str = ""
    time_values: Callable[[int], list[float]] = thousand
    text: tuple[str, ...] = ("encoder_hidden_states",)
    output: Callable[[Any], list[Tensor]] = tensors
    step: Advance | None = None
    notes: str = ""
    exported: str | None = None

    def advance(self, inputs: Kwargs, outputs: list[Tensor], step: int, num_steps: int) -> Kwargs:
        """The keyword arguments with the latents after one update; what is not a latent stays the same object."""
        if self.step is not None:
            return self.step(inputs, outputs, step, num_steps)
        queue = iter(outputs)
        moved = {
            name: like(inputs[name], lambda x: euler(x, next(queue), num_steps)) for name in self.latents
        }
        return {**inputs, **moved}

    def at(self, inputs: Kwargs, time: float, end: float) -> Kwargs:
        """The keyword arguments at that time, for a step that goes on to the time `end`."""
        values = dict.fromkeys(self.time, time) | ({self.next_time: end} if self.next_time else {})
        return {**inputs, **{name: filled(inputs[name], value) for name, value in values.items()}}

    def conditioning(self, inputs: Kwargs, which: int) -> Kwargs:
        """The keyword arguments of guidance branch `which`: 0 is `inputs` itself, others have another text."""
        if which == 0:
            return inputs
        generator = torch.Generator().manual_seed(1000 + which)
        return {**inputs, **{name: like(inputs[name], lambda x: redrawn(x, generator)) for name in self.text}}


def filled(value: Any, number: float) -> Any:
    """A time argument of the same form and type that holds `number`."""
    return (
        like(value, lambda x: torch.full_like(x, number)) if not isinstance(value, (int, float)) else number
    )


def redrawn(value: Tensor, generator: torch.Generator) -> Tensor:
    """Another value of the same shape and type: noise, or for whole numbers a permutation of the alphabet."""
    if value.is_floating_point():
        return torch.randn(value.shape, generator=generator).to(value.dtype)
    return (value.amax() - value) if value.dtype != torch.bool else value


def case(
    cls: str,
    config: Kwargs,
    inputs: Inputs,
    *,
    variant: str = "",
    **fields: Any,
) -> Case:
    """A case of the Diffusers class named `cls` (with its module before a colon, if it is not exported)."""
    path, _, name = cls.rpartition(":")

    def build(*, seed: int = 0, **overrides: Any) -> nn.Module:
        owner = importlib.import_module(f"diffusers.{path}" if path else "diffusers")
        module: nn.Module = tiny(getattr(owner, name), seed=seed, **{**config, **overrides})
        return module

    exported = None if path else name
    return Case(f"{name}-{variant}" if variant else name, build, inputs, exported=exported, **fields)


def randn(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator)


def times(batch: int, value: float = 1.0) -> Tensor:
    """The time argument of most pipelines: one number per sample."""
    return torch.full((batch,), value)


def grid_ids(height: int, width: int, axes: int = 3, first: int = 1) -> Tensor:
    """Position ids (tokens, axes) of a height x width picture: row and column from axis `first` on."""
    ids = torch.zeros(height, width, axes)
    ids[..., first] += torch.arange(height)[:, None]
    ids[..., first + 1] += torch.arange(width)[None, :]
    return ids.reshape(height * width, axes)


def rotary(tokens: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines (tokens, width) of a one-dimensional rotary embedding."""
    angles = torch.arange(tokens)[:, None] / 10.0 ** torch.arange(width // 2)[None, :]
    return angles.cos().repeat_interleave(2, -1), angles.sin().repeat_interleave(2, -1)


@torch.no_grad()
def loop(
    case: Case,
    module: nn.Module,
    *,
    num_steps: int = 6,
    seed: int = 0,
    batch: int = 1,
    branches: int = 1,
    begin_step: Callable[[int], object] | None = None,
) -> list[Tensor]:
    """A hand-written denoising loop; returns the final latents.

    With two branches the text-conditional call comes first, then the other, and the outputs are combined as in
    classifier-free guidance. Conditioning tensors stay the same objects from step to step. Everything runs on the
    device of the module's parameters.
    """
    device = next(module.parameters()).device
    inputs = like(case.inputs(torch.Generator().manual_seed(seed), batch), lambda x: x.to(device))
    branch_inputs = [case.conditioning(inputs, which) for which in range(branches)]
    values = case.time_values(num_steps)
    ends = [*values[1:], 2 * values[-1] - values[-2] if num_steps > 1 else 0.0]
    for i, (time, end) in enumerate(zip(values, ends, strict=True)):
        if begin_step is not None:
            begin_step(i)
        latents = {name: inputs[name] for name in case.latents}
        outputs = [
            case.output(module(**case.at({**kwargs, **latents}, time, end))) for kwargs in branch_inputs
        ]
        guided = [combine(parts) for parts in zip(*outputs, strict=True)]
        inputs = case.advance(inputs, guided, i, num_steps)
    return tensors([inputs[name] for name in case.latents])


def combine(parts: tuple[Tensor, ...], scale: float = 1.5) -> Tensor:
    """Guidance: away from the other branches, towards the first."""
    first, *others = parts
    for other in others:
        first = other + scale * (first - other)
    return first
