"""Compute, measured alike for all: the floating-point operations that a denoiser executes.

Counting each operation would double the time of a run. So one run is counted operation by operation, and its work is put down to
the layers (modules without children): what runs between two layers goes to the first. After that only calls of layers are counted.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from diffcache.discovery.flops import FlopCount
from diffcache.host.components import denoisers_of

LayerCosts = Mapping[str, float]
"""Floating-point operations for each element of a layer's input, by the layer's name."""

Hook = Callable[[str, Tensor], None]


class Work:
    """Attributes: total: floating-point operations so far."""

    def __init__(self) -> None:
        self.total = 0.0


@contextmanager
def counted_flops(pipe: Any) -> Iterator[FlopCount]:
    """Counts inside every denoiser call of a pipeline, operation by operation. Enter it before a cache is attached."""
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


def layer_costs(pipe: Any, run: Callable[[], object]) -> LayerCosts:
    """What the layers of a plain pipeline cost in a run of it."""
    flops: dict[str, float] = {}
    elements: dict[str, int] = {}
    before, last = 0, ""

    def begins(name: str, given: Tensor) -> None:
        nonlocal before
        flops[last or name] = flops.get(last or name, 0) + count.total - before
        before = count.total

    def ends(name: str, given: Tensor) -> None:
        nonlocal before, last
        flops[name] = flops.get(name, 0) + count.total - before
        elements[name] = elements.get(name, 0) + given.numel()
        before, last = count.total, name

    with counted_flops(pipe) as count, _layers_call(pipe, ends, begins):
        run()
    return {name: flops[name] / elements[name] for name in flops}


@contextmanager
def counted_work(pipe: Any, costs: LayerCosts) -> Iterator[Work]:
    """Counts the work inside a pipeline's denoisers by the layers that are called. Enter it before a cache is attached."""
    work = Work()

    def called(name: str, given: Tensor) -> None:
        work.total += costs.get(name, 0.0) * given.numel()

    with _layers_call(pipe, called):
        yield work


@contextmanager
def _layers_call(pipe: Any, ends: Hook, begins: Hook | None = None) -> Iterator[None]:
    """Tells of every call of a layer, at its end and perhaps at its beginning: the layer's name and its first tensor."""
    with ExitStack() as stack:
        for component, denoiser in denoisers_of(pipe).items():
            for name, layer in denoiser.named_modules(prefix=component):
                if not any(layer.children()):
                    stack.callback(layer.register_forward_hook(_hook(name, ends)).remove)
                    if begins is not None:
                        stack.callback(layer.register_forward_pre_hook(_hook(name, begins)).remove)
        yield


def _hook(name: str, do: Hook) -> Callable[..., None]:
    def called(module: nn.Module, args: Any, output: Any = None) -> None:
        given = next((value for value in args if isinstance(value, Tensor)), None)
        if given is not None:
            do(name, given)

    return called
