"""Three ways to compile a pipeline's denoiser, and a backend that counts what is compiled and what runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule


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
