"""Denoising loops that somebody wrote by hand, in a form that recordings and searches can call like a pipeline."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from diffcache.schedulers.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Loop:
    """A denoiser, and a function that runs the denoising loop around it.

    Attributes:
        denoiser: the module that `accelerate` is given.
        run: takes the denoiser and a call's keyword arguments, opens a `denoising_run`, and returns pictures
            [N, ..., H, W] in 0..1.
    """

    denoiser: nn.Module
    run: Callable[..., Tensor]

    def check(self, call: Mapping[str, Any]) -> None:
        """Refuses a call that the function does not take.

        Raises:
            ConfigError: it does not take these arguments.
        """
        try:
            inspect.signature(self.run).bind(self.denoiser, **call)
        except TypeError as error:
            raise ConfigError(
                f"the Loop's function cannot be called so ({error}): give dicts of its arguments in place of prompts, and let it take **call, since each call gets "
                "a generator too."
            ) from error

    def __call__(self, **call: Any) -> tuple[Tensor]:
        return (self.run(self.denoiser, **call),)


def target_of(pipe: Any) -> Any:
    """What to give to `accelerate`: the pipeline itself, or the denoiser of a `Loop`."""
    return pipe.denoiser if isinstance(pipe, Loop) else pipe
