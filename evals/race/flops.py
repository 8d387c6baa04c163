"""Compute, measured alike for all: the floating-point operations that a denoiser executes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from diffcache.discovery.flops import FlopCount
from diffcache.host.components import denoisers_of


@contextmanager
def counted_flops(pipe: Any) -> Iterator[FlopCount]:
    """Counts inside every denoiser call of a pipeline. Enter it before a cache is attached."""
    count = FlopCount()

    def enter(*_: Any) -> None:
        count.__enter__()  # type: ignore[no-untyped-call]

    def leave(*_: Any) -> None:
        count.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    hooks = [module.register_forward_pre_hook(enter) for module in denoisers_of(pipe).values()]
    hooks += [module.register_forward_hook(leave, always_call=True) for module in denoisers_of(pipe).values()]
    try:
        yield count
    finally:
        for hook in hooks:
            hook.remove()
