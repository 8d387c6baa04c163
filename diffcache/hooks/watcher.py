"""Watching the calls of some modules inside a forward, from the module whose forward runs."""

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, Protocol

from torch import nn
from torch.compiler import is_dynamo_compiling


class Watcher(Protocol):
    """Sees the calls of units while a denoiser's forward runs.

    Attributes:
        watches: which units, by identity.
    """

    @property
    def watches(self) -> Container[int]: ...

    def unit(
        self, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any: ...


_watcher: ContextVar[Watcher | None] = ContextVar("diffcache_units", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Inside, `watcher` sees every call of a swapped unit in this context."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def unit_members(base: type) -> dict[str, Any]:
    """What a unit's swapped class overrides."""

    @wraps(base.__call__)
    def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return base.__call__(self, *args, **kwargs)
        watcher = _watcher.get()
        if watcher is None or id(self) not in watcher.watches:
            return base.__call__(self, *args, **kwargs)
        return watcher.unit(self, partial(base.__call__, self), args, kwargs)

    return {"__call__": __call__}
