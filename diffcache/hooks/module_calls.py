"""Tells which of a module's parts is running while it is called, and may replace what a part returns.

PyTorch's own hooks do it, for the time of a call only: nothing is left on the modules between calls. They run wherever a part's forward
runs, whether or not its class is swapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any

from torch import nn

Replace = Callable[[nn.Module, tuple[Any, ...], Any], Any]
"""Is given a part, its positional arguments and what it returned; returns what the call goes on with."""


class ModuleCalls:
    """Follows the calls of some parts of a module.

    Args:
        parts: modules by name.

    Attributes:
        entered: how many calls of parts have begun.
    """

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        self.parts = parts
        self.entered = 0
        self._running: list[tuple[str, int]] = []

    @property
    def innermost(self) -> tuple[str, int]:
        """Name of the innermost part that is running, and the number of its call; an empty name where none is."""
        return self._running[-1] if self._running else ("", 0)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Inside, in this thread, calls are followed."""
        own = get_ident()
        self.entered, self._running = 0, []

        def entering(name: str) -> Callable[..., None]:
            def enter(*_: Any) -> None:
                if get_ident() == own:
                    self.entered += 1
                    self._running.append((name, self.entered))

            return enter

        def leaving(*_: Any) -> None:
            if get_ident() == own:
                self._running.pop()

        with ExitStack() as stack:
            for name, part in self.parts.items():
                stack.callback(part.register_forward_pre_hook(entering(name)).remove)
                stack.callback(part.register_forward_hook(leaving, always_call=True).remove)
            try:
                yield
            finally:
                self._running = []


@contextmanager
def replaced(part: nn.Module, replace: Replace) -> Iterator[None]:
    """Inside, in this thread, calls of a part return what `replace` makes of it."""
    own = get_ident()

    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return replace(module, args, output) if get_ident() == own else output

    handle = part.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
