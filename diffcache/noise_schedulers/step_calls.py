"""Calls of a noise scheduler's `step`, and how they are made again with other outputs."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor

NAMES = ("model_output", "timestep", "sample")
"""Arguments that every `step` of Diffusers has."""


class StepCall(NamedTuple):
    """One call of `step`.

    Attributes:
        output: the denoiser's, after guidance.
        timestep: as it was given.
        sample: of the output's shape.
        options: all other arguments, by name.
    """

    output: Tensor
    timestep: Any
    sample: Tensor
    options: Mapping[str, Any]

    @property
    def arguments(self) -> dict[str, Any]:
        """All of them by name."""
        return {**dict(zip(NAMES, self[:3], strict=True)), **self.options}

    def made_by(self, noise_scheduler: Any) -> Tensor:
        """The next sample. The class's `step` is called, because the instance's may be wrapped by somebody."""
        stepped: Tensor = type(noise_scheduler).step(noise_scheduler, **self.arguments)[0]
        return stepped


def step_call_of(noise_scheduler: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> StepCall | None:
    """The call with these arguments; None where it has others than `NAMES`, or its output is not of the sample's shape (learned variances)."""
    given = dict(zip(_names(type(noise_scheduler).step), args, strict=False)) | dict(kwargs)
    output, timestep, sample = (given.pop(name, None) for name in NAMES)
    if not isinstance(output, Tensor) or not isinstance(sample, Tensor) or output.shape != sample.shape:
        return None
    return StepCall(output, timestep, sample, given)


def copy_of(noise_scheduler: Any) -> Any:
    """A copy that is stepped without a change of the original. Steps replace tensors, and write to lists."""
    copied = copy.copy(noise_scheduler)
    for name, value in vars(copied).items():
        if isinstance(value, list):
            setattr(copied, name, [*value])
    return copied


@cache
def _names(step: Callable[..., Any]) -> tuple[str, ...]:
    """Of the parameters of `step`, in order, but for `self`."""
    return tuple(inspect.signature(step).parameters)[1:]
