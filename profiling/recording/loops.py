"""Hand-written loops: a denoiser with its loop, for searches and recordings to call as they call a pipeline."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Loop:
    """A denoiser and the loop around it, which opens a `denoising_run`.

    Attributes:
        denoiser: what is accelerated.
        run: the denoiser and a call's keyword arguments to what the loop makes, [N, ..., H, W] in 0..1.
    """

    denoiser: nn.Module
    run: Callable[..., Tensor]

    def __call__(self, **call: Any) -> tuple[Tensor]:
        return (self.run(self.denoiser, **call),)


def target_of(pipe: Any) -> Any:
    """What `accelerate` is given for a pipeline, or for a denoiser with its loop."""
    return pipe.denoiser if isinstance(pipe, Loop) else pipe
