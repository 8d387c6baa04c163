"""A denoiser in another number format, while noise scheduler, VAE and latents stay in float32."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from diffcache.host.components import denoisers_of


@contextmanager
def denoising_in(pipe: Any, dtype: torch.dtype) -> Iterator[None]:
    """Autocasts every denoiser call of a pipeline on the CPU; float32 changes nothing. Enter it before a cache is attached.

    Weights stay in float32, so latents are drawn in float32 too: the same noise from the same seed.
    """
    if dtype == torch.float32:
        yield
        return
    cast = torch.autocast("cpu", dtype)

    def enter(*_: Any) -> None:
        cast.__enter__()  # type: ignore[no-untyped-call]

    def leave(*_: Any) -> None:
        cast.__exit__(None, None, None)

    with ExitStack() as stack:
        for denoiser in denoisers_of(pipe).values():
            stack.callback(denoiser.register_forward_pre_hook(enter).remove)
            stack.callback(denoiser.register_forward_hook(leave, always_call=True).remove)
        yield
