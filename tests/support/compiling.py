"""Three ways to compile a pipeline's denoiser, a backend that counts what is compiled and what runs, and one that hides what runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter
from torch.utils._python_dispatch import _disable_current_modes


class Graphs:
    """A backend that runs each graph as it is, and counts them and their executions."""

    def __init__(self) -> None:
        self.compiled = 0
        self.executed = 0

    def __call__(self, graph: GraphModule, inputs: Any) -> Callable[..., Any]:
        self.compiled += 1

        def run(*args: Any) -> Any:
            self.executed += 1
            return graph.forward(*args)

        return run


def wrapped(pipe: Any, backend: Graphs) -> None:
    pipe.transformer = torch.compile(pipe.transformer, backend=backend, fullgraph=True)


def in_place(pipe: Any, backend: Graphs) -> None:
    pipe.transformer.compile(backend=backend, fullgraph=True)


def repeated_blocks(pipe: Any, backend: Graphs) -> None:
    pipe.transformer.compile_repeated_blocks(backend=backend, fullgraph=True)


class PartlyTold:
    """A backend whose code tells a dispatch mode of its products alone, as Inductor's does: of neither memory nor other operations."""

    def __call__(self, graph: GraphModule, inputs: Any) -> Callable[..., Any]:
        return _Products(graph).run


class _Products(Interpreter):
    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is not torch._C._nn.linear:
            with _disable_current_modes():
                return super().call_function(target, args, kwargs)
        x, weight, bias = args
        with _disable_current_modes():
            rows, turned = x.flatten(0, -2), weight.t()
            product = torch.empty(len(rows), len(weight))
        torch.mm(rows, turned, out=product)
        with _disable_current_modes():
            return product.view(*x.shape[:-1], -1) + bias

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        with _disable_current_modes():
            return super().call_method(target, args, kwargs)
